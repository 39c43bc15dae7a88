"""Sockets for containers: made for leases, mounted for their tasks, and gone with supervisors that were killed."""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from farbus.agent.config import AgentConfig
from farbus.agent.container_sockets import ContainerSockets
from farbus.api.v1 import session_pb2
from farbus.linux.rdma import RdmaDevice
from farbus.linux.unix_sockets import bind_file
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

HELD = msgspec.structs.replace(lease(), secret=os.urandom(32).hex())
"""Its socket is called as no other of this machine: by such names it is told which socket files are somebody's."""
NAME = socket_name(bytes.fromhex(HELD.secret))
OTHER_USER = 54321

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to have another user")


class BySocket(SmallSupervisor):
    """One that listens at the socket that it is given, too, and does something ``first``."""

    def __init__(self, *, first: str = "") -> None:
        self._first = first

    def command(
        self,
        *,
        address: str,
        secret_descriptor: int,
        devices: tuple[Device, ...],
        socket_descriptor: int | None = None,
        **_: object,
    ) -> tuple[str, ...]:
        python, option, program, *words = super().command(
            address=address, secret_descriptor=secret_descriptor, devices=devices
        )
        # Another user might not get at this Python: what it imports comes first.
        listen = f"""
import os, socket
{self._first}
descriptor = {socket_descriptor}
if descriptor is not None:
    local = socket.socket(fileno=descriptor)
    local.listen()
"""
        return (python, option, listen + program, *words)


@pytest.fixture
def config(config: AgentConfig, tmp_path: Path) -> AgentConfig:
    return msgspec.structs.replace(config, cdi_directory=str(tmp_path / "cdi"))


def start(agent: AgentInProcess, config: AgentConfig, *, first: str = "", adapters: Sequence[RdmaDevice] = ()) -> None:
    """Start an agent; its supervisors do ``first`` before all else."""
    doors = msgspec.structs.replace(doors_with_gpu(config), remoting=BySocket(first=first), rdma=lambda: list(adapters))
    agent.start(config, doors)


def edits(config: AgentConfig) -> dict[str, list[dict[str, str]]]:
    """What engines are told to do to containers of the only task."""
    (told,) = Path(config.cdi_directory).iterdir()
    (device,) = json.loads(told.read_bytes())["devices"]
    found: dict[str, list[dict[str, str]]] = device["containerEdits"]
    return found


def mounts(config: AgentConfig) -> dict[str, str]:
    """What engines are told to mount for the only task."""
    return {mount["hostPath"]: mount["containerPath"] for mount in edits(config)["mounts"]}


def names(config: AgentConfig) -> list[str]:
    return os.listdir(config.sockets_directory)


def who_listens(path: Path) -> int:
    """Return the user id that the kernel names to who connects."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(str(path))
        _, user, _ = struct.unpack("=iII", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return int(user)


async def test_a_task_s_container_finds_its_supervisor_s_socket_which_goes_with_the_lease(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler
) -> None:
    start(agent, config)
    sessions = scheduler.sessions
    await sessions.connected()
    devices = await sessions.command(prepare_devices=prepare_devices(HELD))
    assert devices.ok, devices
    assert mode_of(config.sockets_directory) == 0o711
    client = await sessions.command(prepare_client=prepare_client(HELD, devices.endpoint))
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


@needs_root
async def test_the_file_is_the_agent_s_and_who_listens_there_is_the_supervisor(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler, short_path: Path
) -> None:
    """As in an agent's directory that an earlier version gave to the supervisors' user, who left a link there."""
    apart = msgspec.structs.replace(config, remoting_sockets=str(short_path / "sockets"))
    apart.sockets_directory.mkdir(mode=0o755)
    path = apart.sockets_directory / NAME
    path.symlink_to(short_path / "elsewhere")
    os.chown(apart.sockets_directory, OTHER_USER, OTHER_USER)
    start(agent, apart, first=f"os.setresuid(*[{OTHER_USER}] * 3)")
    await scheduler.sessions.connected()
    assert (await scheduler.sessions.command(prepare_devices=prepare_devices(HELD))).ok
    directory, file = apart.sockets_directory.stat(), path.lstat()
    assert (directory.st_uid, stat.S_IMODE(directory.st_mode)) == (0, 0o711)
    assert (file.st_uid, file.st_mode) == (0, stat.S_IFSOCK | 0o666)
    assert who_listens(path) == OTHER_USER
    assert (await scheduler.sessions.command(unprepare_devices=session_pb2.UnprepareDevices(lease_id="l1"))).ok
    assert names(apart) == []


@needs_root
def test_what_the_agent_has_not_made_is_mounted_nowhere(short_path: Path) -> None:
    with bind_file(short_path, "own"), bind_file(short_path, "other"):
        os.chown(short_path / "other", OTHER_USER, OTHER_USER)
        (short_path / "link").symlink_to("own")
        (short_path / "file").touch()
        found = ContainerSockets(short_path).there(["own", "other", "link", "file", "missing"])
    assert found == [short_path / "own"]


async def test_a_supervisor_that_does_not_start_leaves_no_socket(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler
) -> None:
    start(agent, config, first="raise SystemExit('no driver here')")
    await scheduler.sessions.connected()
    devices = await scheduler.sessions.command(prepare_devices=prepare_devices(HELD))
    assert "no driver here" in devices.error
    assert names(config) == []


async def test_the_next_agent_s_tasks_find_the_socket_of_a_supervisor_that_goes_on(
    config: AgentConfig, scheduler: ScriptedScheduler, short_path: Path
) -> None:
    leaving = msgspec.structs.replace(config, end_on_stop=False, remoting_sockets=str(short_path / "sockets"))
    sessions = scheduler.sessions
    first, second = AgentInProcess(), AgentInProcess()
    start(first, leaving)
    await sessions.connected()
    devices = await sessions.command(prepare_devices=prepare_devices(HELD))
    await first.stop()
    start(second, leaving)
    try:
        await sessions.connected(hellos=2)
        assert (await sessions.command(prepare_client=prepare_client(HELD, devices.endpoint))).ok
        assert str(leaving.sockets_directory / NAME) in mounts(leaving)
        assert who_listens(leaving.sockets_directory / NAME) == os.geteuid()
        assert (await sessions.command(unprepare_client=unprepare_client("j1"))).ok
        assert (await sessions.command(unprepare_devices=session_pb2.UnprepareDevices(lease_id="l1"))).ok
        assert names(leaving) == []
    finally:
        await second.stop()


async def test_a_lease_is_served_where_no_socket_can_be(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler, tmp_path: Path
) -> None:
    (tmp_path / "shared").write_text("in its way")
    start(agent, msgspec.structs.replace(config, remoting_sockets=str(tmp_path / "shared")))
    sessions = scheduler.sessions
    await sessions.connected()
    devices = await sessions.command(prepare_devices=prepare_devices(HELD))
    assert devices.ok, devices
    client = await sessions.command(prepare_client=prepare_client(HELD, devices.endpoint))
    assert client.ok, client
    assert set(mounts(config).values()) == {"/run/farbus/session", "/run/farbus/lib"}
    assert (await sessions.command(unprepare_devices=session_pb2.UnprepareDevices(lease_id="l1"))).ok


async def test_without_containers_there_is_no_socket_for_them(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler
) -> None:
    start(agent, msgspec.structs.replace(config, cdi_directory=""))
    await scheduler.sessions.connected()
    assert (await scheduler.sessions.command(prepare_devices=prepare_devices(HELD))).ok
    assert not config.sockets_directory.exists()


@pytest.mark.parametrize(
    ("rdma", "elsewhere", "given"), [("on", True, ["uverbs1"]), ("off", True, []), ("on", False, [])]
)
async def test_a_task_s_container_has_the_adapters_by_which_its_sessions_may_go(
    agent: AgentInProcess,
    config: AgentConfig,
    scheduler: ScriptedScheduler,
    tmp_path: Path,
    rdma: str,
    elsewhere: bool,
    given: list[str],
) -> None:
    """Those with an address that are there, where the operator lets sessions with other nodes go so."""
    nodes = [tmp_path / f"uverbs{number}" for number in range(3)]
    for node in nodes[:2]:
        node.touch()
    adapters = [
        RdmaDevice(name="mlx5_0", addresses=(), nodes=(nodes[0],)),
        RdmaDevice(name="mlx5_1", addresses=("192.0.2.1",), nodes=(nodes[1],)),
        RdmaDevice(name="mlx5_2", addresses=("192.0.2.2",), nodes=(nodes[2],)),
    ]
    start(agent, msgspec.structs.replace(config, remoting_rdma=rdma), adapters=adapters)
    sessions = scheduler.sessions
    await sessions.connected()
    endpoint = "192.0.2.7:7"
    if not elsewhere:
        endpoint = (await sessions.command(prepare_devices=prepare_devices(HELD))).endpoint
    client = await sessions.command(prepare_client=prepare_client(HELD, endpoint))
    assert client.ok, client
    assert [Path(node["path"]).name for node in edits(config).get("deviceNodes", [])] == given
