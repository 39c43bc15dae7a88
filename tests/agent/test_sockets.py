"""Sockets for containers: made for leases, mounted for their tasks, and gone with supervisors that were killed."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import msgspec
import pytest

from farbus.agent.config import AgentConfig
from farbus.api.v1 import session_pb2
from farbus.model.device import Device
from farbus.remoting.session import LOCAL_NAME, socket_name
from tests.agent.harness import (
    AgentInProcess,
    ScriptedScheduler,
    SmallSupervisor,
    doors_with_gpu,
    lease,
)
from tests.agent.test_agent import mode_of, prepare_client, prepare_devices, unprepare_client

NAME = socket_name(bytes.fromhex(lease().secret))


class BySocket(SmallSupervisor):
    """One that listens in the directory that it is given, too, and when it is killed leaves its socket there."""

    PROGRAM = f"""
import os, socket, sys
local = socket.socket(socket.AF_UNIX)
if sys.argv[-1]:
    os.chdir(sys.argv[-1])
    local.bind("{NAME}")
    local.listen()
{SmallSupervisor.PROGRAM}"""

    def command(
        self,
        *,
        address: str,
        secret_descriptor: int,
        devices: tuple[Device, ...],
        socket_directory: Path | None = None,
        **_: object,
    ) -> tuple[str, ...]:
        command = super().command(address=address, secret_descriptor=secret_descriptor, devices=devices)
        return (*command, str(socket_directory or ""))


@pytest.fixture
def config(config: AgentConfig, tmp_path: Path) -> AgentConfig:
    return msgspec.structs.replace(config, cdi_directory=str(tmp_path / "cdi"))


def start(agent: AgentInProcess, config: AgentConfig) -> None:
    agent.start(config, msgspec.structs.replace(doors_with_gpu(config), remoting=BySocket()))


def mounts(config: AgentConfig) -> dict[str, str]:
    """What engines are told to mount for the only task."""
    (told,) = Path(config.cdi_directory).iterdir()
    (device,) = json.loads(told.read_bytes())["devices"]
    return {mount["hostPath"]: mount["containerPath"] for mount in device["containerEdits"]["mounts"]}


def names(config: AgentConfig) -> list[str]:
    return os.listdir(config.sockets_directory)


async def test_a_task_s_container_finds_its_supervisor_s_socket_which_goes_with_the_lease(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler
) -> None:
    start(agent, config)
    sessions = scheduler.sessions
    await sessions.connected()
    devices = await sessions.command(prepare_devices=prepare_devices(lease()))
    assert devices.ok, devices
    assert mode_of(config.sockets_directory) == 0o711
    client = await sessions.command(prepare_client=prepare_client(lease(), devices.endpoint))
    assert client.ok, client
    assert mounts(config)[str(config.sockets_directory / NAME)] == f"/run/farbus/{NAME}"
    assert (await sessions.command(unprepare_client=unprepare_client("j1"))).ok
    assert (await sessions.command(unprepare_devices=session_pb2.UnprepareDevices(lease_id="l1"))).ok
    assert names(config) == []


async def test_what_an_earlier_agent_left_is_removed_and_what_is_somebody_s_stays(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler, short_path: Path
) -> None:
    """Agents that share a machine may share the directory."""
    shared = msgspec.structs.replace(config, remoting_sockets=str(short_path))
    left, other = (short_path / f"{LOCAL_NAME}{name}.{short_path.name}" for name in ("left", "other"))
    with socket.socket(socket.AF_UNIX) as ended:
        ended.bind(str(left))
    with socket.socket(socket.AF_UNIX) as served:
        served.bind(str(other))
        start(agent, shared)
        await scheduler.sessions.connected()
        assert names(shared) == [other.name]


async def test_a_lease_is_served_where_no_socket_can_be(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler, tmp_path: Path
) -> None:
    (tmp_path / "shared").write_text("in its way")
    start(agent, msgspec.structs.replace(config, remoting_sockets=str(tmp_path / "shared")))
    sessions = scheduler.sessions
    await sessions.connected()
    devices = await sessions.command(prepare_devices=prepare_devices(lease()))
    assert devices.ok, devices
    client = await sessions.command(prepare_client=prepare_client(lease(), devices.endpoint))
    assert client.ok, client
    assert set(mounts(config).values()) == {"/run/farbus/session", "/run/farbus/lib"}
    assert (await sessions.command(unprepare_devices=session_pb2.UnprepareDevices(lease_id="l1"))).ok


async def test_without_containers_there_is_no_socket_for_them(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler
) -> None:
    start(agent, msgspec.structs.replace(config, cdi_directory=""))
    await scheduler.sessions.connected()
    assert (await scheduler.sessions.command(prepare_devices=prepare_devices(lease()))).ok
    assert not config.sockets_directory.exists()
