"""A scheduler process that is killed with SIGKILL and started again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from farbus.api.client import ClusterClient
from farbus.api.identity import Role
from farbus.errors import ExitCode, FarbusError
from farbus.model.move import MoveState
from farbus.model.states import JobState, LeaseState, VolumeState
from farbus.model.value import to_json
from farbus.model.volume import VolumeRequest
from farbus.scheduler import events
from tests.scheduler.light_agent import LightAgent
from tests.scheduler.scripted import job, node, storing
from tests.scheduler.site import Site
from tests.scheduler.test_service_moves import MOVED, connected, light_agents, until_known

pytestmark = pytest.mark.timeout(120)


class Process:
    """A scheduler's process on the site's state."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.child: asyncio.subprocess.Process | None = None

    async def start(self, *, dies: str = "", **changes: object) -> None:
        path = self.site.directory / "scheduler.json"
        changes.setdefault("listen", f"127.0.0.1:{self.site.port}")
        path.write_bytes(to_json(self.site.config(**changes)))
        self.child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.scheduler.scheduler_process",
            str(path),
            *((dies,) if dies else ()),
            stderr=asyncio.subprocess.PIPE,
        )
        assert self.child.stderr is not None
        async for line in self.child.stderr:
            said = json.loads(line)
            if said["event"] == "scheduler ready":
                self.site.port = said["port"]
                return
        raise AssertionError(f"the scheduler ended with {await self.child.wait()}")

    async def kill(self) -> None:
        assert self.child is not None
        assert self.child.stderr is not None
        self.child.send_signal(signal.SIGKILL)
        await asyncio.gather(self.child.wait(), self.child.stderr.read())

    async def stop(self) -> int:
        assert self.child is not None
        assert self.child.stderr is not None
        if self.child.returncode is None:
            self.child.terminate()
        _, code = await asyncio.gather(self.child.stderr.read(), self.child.wait())
        return code


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[Process]:
    process = Process(Site(tmp_path))
    await process.start()
    yield process
    with contextlib.suppress(ProcessLookupError):
        await process.stop()


async def wait_for(client: ClusterClient, job_id: str, *states: JobState) -> None:
    async for status in client.watch_job(job_id):
        if status.state in states:
            return
    raise AssertionError(f"{job_id} ended")


async def test_a_queued_job_survives(process: Process) -> None:
    async with process.site.client() as client:
        job_id, _ = await client.submit(job("", gpus=1))
        await process.kill()
    await process.start()
    async with process.site.client() as client, process.site.agent(LightAgent(node("a", 1))) as agent:
        await agent.until(events.StartTask, job_id)
        await wait_for(client, job_id, JobState.RUNNING)
        await agent.finish(job_id)
        assert [status.state async for status in client.watch_job(job_id)][-1] is JobState.SUCCEEDED


async def test_a_running_job_is_adopted(process: Process) -> None:
    a, c = LightAgent(node("a", 1)), LightAgent(node("c"))
    async with process.site.client() as client, process.site.agent(a), process.site.agent(c):
        job_id, _ = await client.submit(job("", gpus=1, on="c"))
        await wait_for(client, job_id, JobState.RUNNING)
        await process.kill()
    await process.start()
    async with process.site.client() as client, process.site.agent(a), process.site.agent(c):
        assert (await client.get_job(job_id)).state is JobState.RUNNING
        await c.finish(job_id)
        assert [status.state async for status in client.watch_job(job_id)][-1] is JobState.SUCCEEDED
        assert await client.list_leases() == ()
    assert sum(isinstance(command, events.StartTask) for command in c.commands) == 1


@pytest.mark.parametrize("dies", [f"{when}:{number}" for number in range(3) for when in ("before", "after")])
async def test_a_move_goes_on_when_the_scheduler_is_killed_at_a_write_of_it(process: Process, dies: str) -> None:
    await process.stop()
    await process.start(dies=dies)
    a, b = light_agents()
    with contextlib.suppress(FarbusError):
        async with connected(process.site, a, b) as two:
            await two.move()
    assert process.child is not None
    assert process.child.stderr is not None
    await asyncio.gather(process.child.wait(), process.child.stderr.read())
    assert process.child.returncode == -signal.SIGKILL
    await process.start()
    async with connected(process.site, a, b) as two:
        if not await two.operator.list_moves(include_ended=True):
            await two.move()
        while await two.operator.list_moves():
            pass
        (ended,) = await two.operator.list_moves(include_ended=True)
        assert (ended.state, ended.path) == (MoveState.DONE, f"/dev/{MOVED}")
        await until_known(two.operator, MOVED)
        devices = {status.device.id: (status.node, status.epoch) for status in await two.operator.list_devices()}
        assert devices[MOVED] == ("b", 1)
        assert a.state.fabric is not None
        assert a.state.fabric.at[MOVED] == "b"


@pytest.mark.parametrize("dies", ["after:0", "before:2", "after:2"])
async def test_a_volume_is_made_when_the_scheduler_is_killed_at_a_write_of_it(process: Process, dies: str) -> None:
    await process.stop()
    await process.start(dies=dies)
    a, b = LightAgent(storing("a", 1)), LightAgent(storing("b", 1))
    request = VolumeRequest(name="data", size_bytes=2**30, stripe=2)
    with contextlib.suppress(FarbusError):
        async with process.site.client() as ada, process.site.agent(a), process.site.agent(b):
            async for _ in ada.create_volume(request):
                pass
    assert process.child is not None
    assert process.child.stderr is not None
    await asyncio.gather(process.child.wait(), process.child.stderr.read())
    assert process.child.returncode == -signal.SIGKILL
    await process.start()
    async with process.site.client() as ada, process.site.agent(a), process.site.agent(b):
        if not await ada.list_volumes():
            # Nothing of it was written, and nobody was asked.
            assert not a.state.parts
            assert not b.state.parts
            async for _ in ada.create_volume(request):
                pass
        while (volume := (await ada.list_volumes())[0]).state is not VolumeState.AVAILABLE:
            pass
        assert volume.nodes == ("a", "b")
        assert [*a.state.parts, *b.state.parts] == ["VOL-data:0", "VOL-data:1"]
        last = [status async for status in ada.delete_volume("data")][-1]
        assert last.state is VolumeState.DELETED
        assert not a.state.parts


async def test_a_job_that_was_being_prepared_goes_on(process: Process) -> None:
    a, c = LightAgent(node("a", 1)), LightAgent(node("c"))
    async with process.site.client() as client, process.site.agent(c), process.site.agent(a):
        job_id, _ = await client.submit(job("", gpus=1, on="c"))
        await a.until(events.PrepareDevices, job_id)
        await process.kill()
    await process.start()
    async with process.site.client() as client, process.site.agent(a), process.site.agent(c):
        await wait_for(client, job_id, JobState.RUNNING)
        (lease,) = await client.list_leases()
        assert [device.epoch for device in lease.lease.devices] == [1]


async def test_a_lease_whose_node_stays_away_is_not_granted_again(process: Process) -> None:
    a, c = LightAgent(node("a", 1)), LightAgent(node("c"))
    async with process.site.client() as client, process.site.agent(a), process.site.agent(c):
        job_id, _ = await client.submit(job("", gpus=1, on="c"))
        await wait_for(client, job_id, JobState.RUNNING)
        await process.kill()
    await process.start(lease_ttl_s=1.0, return_s=1.0, unreachable_limit_s=0.0)
    async with process.site.client() as client:
        async with process.site.agent(c):
            assert [status.state async for status in client.watch_job(job_id)][-1] is JobState.FAILED
            (lease,) = await client.list_leases()
            assert lease.state is LeaseState.RELEASING
            waiting, _ = await client.submit(job("", gpus=1, on="c"))
            async for status in client.watch_job(waiting):
                if status.misses:
                    break
        async with process.site.agent(a), process.site.agent(c):
            await wait_for(client, waiting, JobState.RUNNING)


async def test_every_acknowledged_job_of_a_burst_survives(process: Process) -> None:
    acknowledged: list[str] = []

    async def submit(client: ClusterClient) -> None:
        with contextlib.suppress(Exception):
            while True:
                job_id, _ = await client.submit(job(""))
                acknowledged.append(job_id)
                if len(acknowledged) == 50:
                    await process.kill()

    async with process.site.client() as client:
        await asyncio.gather(*(submit(client) for _ in range(8)))
    await process.start()
    async with process.site.client() as client:
        known = {status.job.id for status in await client.list_jobs()}
    assert len(acknowledged) >= 50
    assert set(acknowledged) <= known


@pytest.mark.parametrize("idle", [True, False])
async def test_a_scheduler_whose_ledger_another_one_has_taken_over_stops(process: Process, idle: bool) -> None:
    await process.stop()
    await process.start(lease_ttl_s=1.0 if idle else 3600.0)
    first, address = process.child, process.site.address
    assert first is not None
    assert first.stderr is not None
    # As where locks don't hold: on a network file system, or when somebody removes the lock.
    (process.site.directory / "state" / "ledger.lock").unlink()
    second = Process(process.site)
    await second.start(listen="127.0.0.1:0")
    try:
        if not idle:
            credentials = process.site.credentials("ada", Role.USER)
            async with ClusterClient.remote(address=address, credentials=credentials) as client:
                with pytest.raises(FarbusError):
                    await client.submit(job(""))
        said, code = await asyncio.gather(first.stderr.read(), first.wait())
        assert code == ExitCode.CONFLICT
        assert b"another scheduler took the ledger over: its term is 3, this one's is 2" in said
        async with process.site.client() as client:
            assert await client.list_jobs() == ()
    finally:
        await second.stop()


async def test_sigterm_ends_it_in_good_order(process: Process) -> None:
    assert await process.stop() == 0


@pytest.mark.parametrize(
    ("spoil", "code", "told"),
    [
        ("ledger", 1, "is damaged"),
        ("certificate", 2, "not a PEM certificate"),
        ("role", 2, "it is the certificate of node a"),
        ("port", 7, "the address is in use"),
        ("lock", 7, "in use by process"),
        ("missing", 3, "no such file"),
    ],
)
async def test_what_prevents_it_is_told_in_one_line(
    process: Process, tmp_path: Path, spoil: str, code: int, told: str
) -> None:
    site = process.site
    config = site.config(state=str(tmp_path / "other"))
    if spoil == "ledger":
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "ledger.db").write_bytes(b"not a database, " * 1000)
    elif spoil == "certificate":
        bad = msgspec.structs.replace(config.credentials, certificate=str(tmp_path / "bad.crt"))
        (tmp_path / "bad.crt").write_text("nonsense")
        config = msgspec.structs.replace(config, credentials=bad)
    elif spoil == "missing":
        bad = msgspec.structs.replace(config.credentials, key=str(tmp_path / "none.key"))
        config = msgspec.structs.replace(config, credentials=bad)
    elif spoil == "role":
        config = msgspec.structs.replace(config, credentials=site.credentials("a"))
    elif spoil == "port":
        config = msgspec.structs.replace(config, listen=site.address)
    elif spoil == "lock":
        config = site.config()
    path = tmp_path / "second.json"
    path.write_bytes(to_json(config))
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.scheduler.scheduler_process", str(path), stderr=asyncio.subprocess.PIPE
    )
    _, said = await child.communicate()
    lines = [line for line in said.decode().splitlines() if not line.startswith("{")]
    assert len(lines) == 1, said.decode()
    assert told in lines[0]
    assert child.returncode == code
