"""A whole agent against a scripted scheduler: real protocol, real certificates, real processes."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from pathlib import Path

import msgspec
import psutil
import pytest
import structlog

from farbus.agent import daemon
from farbus.agent.config import AgentConfig
from farbus.agent.daemon import serve
from farbus.agent.remoting_host import SupervisorProgram
from farbus.api.authority import Authority, write_credentials
from farbus.api.client import ClusterClient
from farbus.api.conversion import to_message
from farbus.api.identity import Role
from farbus.api.v1 import session_pb2, types_pb2
from farbus.errors import Conflict, ExitCode, InvalidInput, NotPermitted, Unavailable
from farbus.model.device import Route
from farbus.model.lease import Lease, LeasedDevice
from tests.agent.harness import (
    GPU,
    MYSELF,
    AgentInProcess,
    AgentProcess,
    ScriptedScheduler,
    doors_with_gpu,
    lease,
)


def start_task(job: str, *command: str, **more: object) -> session_pb2.StartTask:
    """Return a command that starts a task."""
    arguments: dict[str, object] = {"user": MYSELF, "cwd": "/", **more}
    return session_pb2.StartTask(job_id=job, task="main.0", command=command, **arguments)


async def test_hello_names_the_node_and_what_it_has(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler
) -> None:
    agent.start(config)
    await scheduler.sessions.connected()
    hello = scheduler.sessions.hellos[0]
    assert hello.node.name == "n1"
    assert hello.node.capacity.cpu_milli > 0
    assert not hello.held
    assert not hello.tasks


async def test_whatever_looking_at_its_certificate_meets_the_agent_goes_on(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, problems = asyncio.Event(), [ValueError("unsupported"), OSError("no descriptor"), OSError("no descriptor")]

    def look(*_: object, **__: object) -> bool:
        if problems:
            raise problems.pop(0)
        looked.set()
        return False

    monkeypatch.setattr(daemon, "is_due", look)
    monkeypatch.setattr(daemon, "CERTIFICATE_INTERVAL_S", 0.0)
    with structlog.testing.capture_logs() as logs:
        agent.start(config)
        await scheduler.sessions.connected()
        await looked.wait()
    told = [entry["reason"] for entry in logs if entry["event"] == "certificate not renewed"]
    assert told == ["ValueError: unsupported", "no descriptor"]


async def test_a_task_runs_and_its_output_and_exit_code_come_back(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler
) -> None:
    agent.start(config)
    await scheduler.sessions.connected()
    outcome = await scheduler.sessions.command(
        start_task=start_task("j1", "sh", "-c", "echo out; echo err >&2; exit 3")
    )
    assert outcome.ok
    exited = await scheduler.sessions.exited("j1")
    assert exited.status.exit_code == 3
    assert await scheduler.sessions.log("j1") == (b"out\n", b"err\n", "")
    released = await scheduler.sessions.command(
        unprepare_client=session_pb2.UnprepareClient(job_id="j1", task="main.0")
    )
    assert released.ok


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        (("/no/such/program",), 127, "no such program"),
        (("/etc/passwd",), 126, "not executable"),
        (("/etc",), 126, "/etc: a directory, not a program; name a program in it"),
    ],
)
async def test_a_program_that_cannot_run_ends_its_task_as_a_shell_would(
    agent: AgentInProcess,
    config: AgentConfig,
    scheduler: ScriptedScheduler,
    command: tuple[str, ...],
    code: int,
    says: str,
) -> None:
    agent.start(config)
    await scheduler.sessions.connected()
    outcome = await scheduler.sessions.command(start_task=start_task("j1", *command))
    assert outcome.ok
    exited = await scheduler.sessions.exited("j1")
    assert exited.status.exit_code == code
    assert says in exited.status.reason


def prepare_devices(one: Lease) -> session_pb2.PrepareDevices:
    """Return a command that prepares the device side of a lease."""
    return session_pb2.PrepareDevices(lease=to_message(one, types_pb2.Lease))


def prepare_client(one: Lease, endpoint: str) -> session_pb2.PrepareClient:
    """Return a command that prepares the client side of a lease."""
    prepared = session_pb2.PreparedLease(lease=to_message(one, types_pb2.Lease), endpoint=endpoint)
    return session_pb2.PrepareClient(job_id=one.job, task=one.task, user=one.user, leases=[prepared])


def unprepare_client(job: str) -> session_pb2.UnprepareClient:
    """Return a command that gives a task's client side up."""
    return session_pb2.UnprepareClient(job_id=job, task="main.0")


def can_connect(endpoint: str) -> bool:
    """Say whether somebody listens."""
    host, _, port = endpoint.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=5):
            return True
    except ConnectionRefusedError:
        return False


def supervisors_of(config: AgentConfig) -> list[psutil.Process]:
    """Return the supervisors that an agent has started."""
    keepers = [json.loads(file.read_text()) for file in Path(config.state).glob("programs/lease.*/keeper.json")]
    return [psutil.Process(keeper["pid"]) for keeper in keepers]


def mode_of(file: Path) -> int | None:
    """Return a file's permissions; None for one that is not there."""
    return file.stat().st_mode & 0o777 if file.exists() else None


def text_of(file: Path) -> str:
    return file.read_text()


async def test_a_leased_task_finds_its_session_and_leaves_nothing_behind(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler
) -> None:
    agent.start(config, doors_with_gpu(config))
    sessions = scheduler.sessions
    await sessions.connected()
    devices = await sessions.command(prepare_devices=prepare_devices(lease()))
    assert devices.ok, devices.error
    client = await sessions.command(prepare_client=prepare_client(lease(), devices.endpoint))
    file = Path(client.environment["FARBUS_SESSION"])
    assert mode_of(file) == 0o600
    await sessions.command(start_task=start_task("j1", "sh", "-c", 'cat "$FARBUS_SESSION"'))
    await sessions.exited("j1")
    told = (await sessions.log("j1"))[0].decode()
    assert f"server tls {devices.endpoint.replace(':', ' ')}\n" in told
    assert f"secret {lease().secret}\n" in told
    assert f"device {GPU}\n" in told
    assert (await sessions.command(unprepare_client=unprepare_client("j1"))).ok
    assert mode_of(file) is None
    released = await sessions.command(unprepare_devices=session_pb2.UnprepareDevices(lease_id="l1"))
    assert released.ok
    assert not can_connect(devices.endpoint)


async def test_gpu_code_is_kept_in_a_directory_of_the_lease_s_user(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler
) -> None:
    agent.start(config, doors_with_gpu(config))
    sessions = scheduler.sessions
    await sessions.connected()
    for epoch, user in ((1, "alice@example.org"), (2, "../bob"), (3, "../bob")):
        number = f"l{epoch}"
        leased = LeasedDevice(device=GPU, epoch=epoch)
        others = msgspec.structs.replace(lease(number), user=user, devices=(leased,))
        assert (await sessions.command(prepare_devices=prepare_devices(others))).ok
        assert (await sessions.command(unprepare_devices=session_pb2.UnprepareDevices(lease_id=number))).ok
    kept = sorted(config.images_directory.iterdir())
    assert len(kept) == 2
    assert {mode_of(path) for path in kept} == {0o700}
    assert mode_of(config.images_directory) == 0o711


async def test_a_lease_is_served_where_gpu_code_can_not_be_kept(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler
) -> None:
    config.images_directory.parent.mkdir(parents=True, exist_ok=True)
    (config.images_directory.parent / "lock").touch()
    config.images_directory.write_text("in its way")
    agent.start(config, doors_with_gpu(config))
    await scheduler.sessions.connected()
    assert (await scheduler.sessions.command(prepare_devices=prepare_devices(lease()))).ok


async def test_no_gpu_code_is_kept_where_the_operator_says_so(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler
) -> None:
    agent.start(msgspec.structs.replace(config, remoting_image_bytes=0), doors_with_gpu(config))
    await scheduler.sessions.connected()
    assert (await scheduler.sessions.command(prepare_devices=prepare_devices(lease()))).ok
    assert mode_of(config.images_directory) is None


async def test_a_task_with_gpus_of_two_nodes_finds_both_servers_its_own_first(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler
) -> None:
    agent.start(config, doors_with_gpu(config))
    sessions = scheduler.sessions
    await sessions.connected()
    own, other = lease(route=Route.LOCAL), msgspec.structs.replace(lease("l2"), device_node="a0", secret="7f" * 32)
    devices = await sessions.command(prepare_devices=prepare_devices(own))
    assert (devices.ok, devices.endpoint) == (True, "")
    together = prepare_client(other, "127.0.0.9:7")
    together.leases.extend(prepare_client(own, "").leases)
    client = await sessions.command(prepare_client=together)
    assert client.ok, client.error
    lines = text_of(Path(client.environment["FARBUS_SESSION"])).splitlines()
    servers = [line.split() for line in lines if line.startswith("server ")]
    assert [line for line in lines if line.startswith("secret ")] == [f"secret {own.secret}", f"secret {other.secret}"]
    # A program of two drivers there is none: its own node's GPU is served as the other's is.
    endpoint = ":".join(servers[0][2:])
    assert servers[1][2:] == ["127.0.0.9", "7"]
    assert len(supervisors_of(config)) == 1
    assert (await sessions.command(unprepare_client=unprepare_client("j1"))).ok
    assert (await sessions.command(unprepare_devices=session_pb2.UnprepareDevices(lease_id="l1"))).ok
    assert not can_connect(endpoint)


async def session_file_of(agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler) -> tuple[str, str]:
    """Start the agent with ``config``, and return its lease's endpoint and what the program's session file says."""
    agent.start(config, doors_with_gpu(config))
    sessions = scheduler.sessions
    await sessions.connected()
    devices = await sessions.command(prepare_devices=prepare_devices(lease()))
    client = await sessions.command(prepare_client=prepare_client(lease(), devices.endpoint))
    return devices.endpoint, text_of(Path(client.environment["FARBUS_SESSION"]))


async def test_encryption_is_off_for_both_sides_where_the_operator_says_so(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler
) -> None:
    endpoint, told = await session_file_of(agent, msgspec.structs.replace(config, remoting_tls="off"), scheduler)
    assert f"server tcp {endpoint.replace(':', ' ')}\n" in told


@pytest.mark.parametrize(("tls", "rdma"), [(True, False), (False, False), (True, True)])
def test_a_supervisor_is_told_of_encryption_the_lease_s_user_patience_sockets_and_images(tls: bool, rdma: bool) -> None:
    command = SupervisorProgram().command(
        lease=lease(),
        address="127.0.0.1",
        secret_descriptor=7,
        devices=(),
        library="",
        tls=tls,
        rdma=rdma,
        local_user=1234,
        grace_s=7.5,
        socket_descriptor=9,
        image_directory=Path("/state/images/alice"),
        image_bytes=1000,
    )
    assert command[command.index("--socket-fd") + 1] == "9"
    assert command[command.index("--image-directory") + 1] == "/state/images/alice"
    assert command[command.index("--image-bytes") + 1] == "1000"
    assert command[command.index("--tls") + 1] == ("on" if tls else "off")
    assert command[command.index("--rdma") + 1] == ("on" if rdma else "off")
    assert command[command.index("--local-user") + 1] == "1234"
    assert command[command.index("--grace") + 1] == "7.5"


async def test_rdma_is_let_where_the_operator_says_so(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler
) -> None:
    endpoint, told = await session_file_of(agent, msgspec.structs.replace(config, remoting_rdma="on"), scheduler)
    lines = told.splitlines()
    # With what is encrypted until then, and where a session does without.
    assert f"server tls {endpoint.replace(':', ' ')}" in lines
    assert "rdma on" in lines


async def test_how_many_connections_a_session_has_is_told_where_the_operator_says_so(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler
) -> None:
    _, told = await session_file_of(agent, msgspec.structs.replace(config, remoting_connections=4), scheduler)
    assert "\nconnections 4\n" in told


@pytest.mark.parametrize("connections", [0, 9])
def test_connections_of_which_there_are_never_so_many_are_refused(config: AgentConfig, connections: int) -> None:
    with pytest.raises(InvalidInput, match=f"remoting_connections: {connections} is not from 1 to 8"):
        msgspec.structs.replace(config, remoting_connections=connections).check()


def test_an_unknown_kind_of_encryption_is_refused(config: AgentConfig) -> None:
    with pytest.raises(InvalidInput, match="remoting_tls: 'maybe' is none of on, off"):
        msgspec.structs.replace(config, remoting_tls="maybe").check()
    with pytest.raises(InvalidInput, match="remoting_rdma: 'maybe' is none of on, off"):
        msgspec.structs.replace(config, remoting_rdma="maybe").check()


async def test_a_command_that_comes_again_gets_the_same_outcome(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler
) -> None:
    agent.start(config, doors_with_gpu(config))
    await scheduler.sessions.connected()
    first = await scheduler.sessions.command(prepare_devices=prepare_devices(lease()))
    second = await scheduler.sessions.command(prepare_devices=prepare_devices(lease()))
    assert (first.ok, first.endpoint) == (second.ok, second.endpoint)


async def test_an_unknown_device_is_refused_by_name(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler
) -> None:
    agent.start(config)
    await scheduler.sessions.connected()
    outcome = await scheduler.sessions.command(prepare_devices=prepare_devices(lease()))
    assert not outcome.ok
    told = "(lease l1, story: preparing -> unpreparing -> absent)"
    assert outcome.error == f"device {GPU}: not on node n1 {told}"


async def test_a_lease_that_is_not_renewed_is_fenced(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler
) -> None:
    # Long enough for a machine that is busy: a loop that stands still for this time fences too early.
    scheduler.sessions.lease_ttl_s = 3.0
    agent.start(config, doors_with_gpu(config))
    await scheduler.sessions.connected()
    # Renewed until its supervisor listens, which takes as long as it takes.
    devices = await scheduler.sessions.command(prepare_devices=prepare_devices(lease(client_node="n2")))
    scheduler.sessions.renew = False
    await scheduler.sessions.until(lambda: bool(scheduler.sessions.ended_leases()))
    ended = scheduler.sessions.ended_leases()[0]
    assert (ended.lease_id, ended.device_side) == ("l1", True)
    assert "not renewed for 3 s" in ended.reason
    assert not can_connect(devices.endpoint)


async def test_a_lease_is_fenced_while_the_scheduler_is_away(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler
) -> None:
    scheduler.sessions.lease_ttl_s = 1.0
    agent.start(config, doors_with_gpu(config))
    await scheduler.sessions.connected()
    devices = await scheduler.sessions.command(prepare_devices=prepare_devices(lease(client_node="n2")))
    supervisors = supervisors_of(config)
    await scheduler.stop()
    gone, alive = await asyncio.to_thread(psutil.wait_procs, supervisors, 20)
    assert gone
    assert not alive
    assert not can_connect(devices.endpoint)


async def test_a_scheduler_of_a_lower_term_is_not_served(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler
) -> None:
    sessions = scheduler.sessions
    sessions.term = 7
    agent.start(config)
    await sessions.connected()
    hello = sessions.hellos[0]
    # Until then it may not have read its welcome, and the term in that.
    await sessions.until(lambda: bool(sessions.said))
    await agent.stop()
    sessions.term = 6
    agent.start(config)
    await sessions.until(lambda: len(sessions.hellos) >= 3)
    async with ClusterClient.local(socket=config.socket) as client:
        told = (await client.cluster_info()).scheduler_error
    assert "the scheduler's term is 6, but this node has served term 7: its ledger is old" in told
    sessions.term = 8
    beats = len(sessions.said)
    await sessions.until(lambda: len(sessions.said) > beats)
    assert sessions.hellos[-1].node.peer_endpoint == hello.node.peer_endpoint, "its peers would look for it in vain"


async def test_a_renewed_lease_outlives_its_time(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler
) -> None:
    scheduler.sessions.lease_ttl_s = 0.6
    agent.start(config, doors_with_gpu(config))
    sessions = scheduler.sessions
    await sessions.connected()
    devices = await sessions.command(prepare_devices=prepare_devices(lease(client_node="n2")))
    beats = sum(said.HasField("heartbeat") for said in sessions.said)
    await sessions.until(lambda: sum(said.HasField("heartbeat") for said in sessions.said) >= beats + 6)
    assert not sessions.ended_leases()
    assert can_connect(devices.endpoint)


async def test_a_void_lease_is_given_up(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler
) -> None:
    agent.start(config, doors_with_gpu(config))
    await scheduler.sessions.connected()
    await scheduler.sessions.command(prepare_devices=prepare_devices(lease(client_node="n2")))
    scheduler.sessions.void.add("l1")
    await scheduler.sessions.until(lambda: bool(scheduler.sessions.ended_leases()))
    assert "ledger does not know" in scheduler.sessions.ended_leases()[0].reason


async def test_a_supervisor_that_dies_ends_its_lease(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler
) -> None:
    agent.start(config, doors_with_gpu(config))
    await scheduler.sessions.connected()
    await scheduler.sessions.command(prepare_devices=prepare_devices(lease(client_node="n2")))
    for supervisor in supervisors_of(config):
        supervisor.kill()
    await scheduler.sessions.until(lambda: bool(scheduler.sessions.ended_leases()))
    assert "ended (signal 9)" in scheduler.sessions.ended_leases()[0].reason


async def test_releasing_a_local_lease_ends_the_task_that_uses_it(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler
) -> None:
    agent.start(config, doors_with_gpu(config))
    sessions = scheduler.sessions
    await sessions.connected()
    local = lease(route=Route.LOCAL)
    devices = await sessions.command(prepare_devices=prepare_devices(local))
    assert (devices.ok, devices.endpoint) == (True, "")
    client = await sessions.command(prepare_client=prepare_client(local, ""))
    assert client.environment["CUDA_VISIBLE_DEVICES"] == GPU
    await sessions.command(start_task=start_task("j1", "sleep", "1000"))
    assert (await sessions.command(unprepare_devices=session_pb2.UnprepareDevices(lease_id="l1"))).ok
    assert (await sessions.exited("j1")).status.exit_code == -9


async def test_a_stopped_task_gets_its_grace(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler
) -> None:
    agent.start(config)
    sessions = scheduler.sessions
    await sessions.connected()
    await sessions.command(start_task=start_task("j1", "sh", "-c", "trap 'exit 7' TERM; echo ready; sleep 1000 & wait"))
    assert await sessions.log_has("j1", b"ready")
    stopped = await sessions.command(stop_task=session_pb2.StopTask(job_id="j1", task="main.0", grace_s=20))
    assert stopped.ok
    assert (await sessions.exited("j1")).status.exit_code == 7


async def test_a_task_that_has_used_its_time_is_stopped(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler
) -> None:
    agent.start(config)
    await scheduler.sessions.connected()
    await scheduler.sessions.command(start_task=start_task("j1", "sleep", "1000", time_limit_s=0.2))
    exited = await scheduler.sessions.exited("j1")
    assert exited.status.exit_code == -15
    assert exited.status.reason == "it has run for its time limit of 0.2 s"


async def test_a_followed_log_goes_on_to_the_end(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler, tmp_path: Path
) -> None:
    agent.start(config)
    await scheduler.sessions.connected()
    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    await scheduler.sessions.command(start_task=start_task("j1", "sh", "-c", f"echo one; read line < {fifo}; echo two"))
    following = asyncio.create_task(scheduler.sessions.log("j1", follow=True))
    await asyncio.to_thread(fifo.write_text, "\n")
    assert await following == (b"one\ntwo\n", b"", "")


async def test_a_log_that_is_not_there_is_said_to_be_missing(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler
) -> None:
    agent.start(config)
    await scheduler.sessions.connected()
    missing = "task j1/main.0: no output is kept on this node; farbus jobs j1 says what became of it"
    assert (await scheduler.sessions.log("j1"))[2] == missing


async def test_a_cut_session_is_opened_again_and_tells_what_is_held(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler
) -> None:
    agent.start(config, doors_with_gpu(config))
    sessions = scheduler.sessions
    await sessions.connected()
    devices = await sessions.command(prepare_devices=prepare_devices(lease(client_node="n2")))
    await sessions.command(start_task=start_task("j2", "sleep", "1000"))
    await sessions.running("j2")
    sessions.cut()
    await sessions.connected(hellos=2)
    hello = sessions.hellos[1]
    assert [(held.lease_id, held.device_side, held.endpoint) for held in hello.held] == [("l1", True, devices.endpoint)]
    assert [(task.job_id, task.status.state) for task in hello.tasks] == [("j2", "running")]


async def test_an_agent_that_stops_ends_and_reports_its_tasks(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler
) -> None:
    agent.start(config)
    await scheduler.sessions.connected()
    await scheduler.sessions.command(start_task=start_task("j1", "sleep", "1000"))
    await scheduler.sessions.running("j1")
    await agent.stop()
    exited = await scheduler.sessions.exited("j1")
    assert (exited.status.exit_code, exited.status.reason) == (-15, "the agent was stopped")


async def test_a_directory_of_others_is_no_state_directory(config: AgentConfig, tmp_path: Path) -> None:
    others = tmp_path / "etc"
    others.mkdir(mode=0o755)
    (others / "passwd").touch()
    wrong = await AgentProcess.start(msgspec.structs.replace(config, state=str(others)), tmp_path)
    said = (await wrong.output()).strip().splitlines()[-1]
    assert said.startswith(f"farbus agent: {others} can't be the directory of an agent's state: it holds other things")
    assert os.listdir(others) == ["passwd"]
    assert others.stat().st_mode & 0o777 == 0o755


def put_in_the_way(state: Path, name: str) -> None:
    """Make a state directory in which a file is a directory, or a directory a file."""
    state.mkdir()
    (state / "lock").touch()
    if name == "instance":
        (state / name).mkdir()
    else:
        (state / name).touch()


@pytest.mark.parametrize("name", ["instance", "programs"])
async def test_what_is_in_the_way_in_a_state_directory_is_told_in_one_line(
    config: AgentConfig, tmp_path: Path, name: str
) -> None:
    state = Path(config.state)
    put_in_the_way(state, name)
    said = (await (await AgentProcess.start(config, tmp_path)).output()).splitlines()
    told = [line for line in said if not line.startswith("{")]
    assert len(told) == 1
    assert told[0].startswith(f"farbus agent: {state / name}")
    assert "; see that it is what Farbus has put there" in told[0]


async def test_two_agents_never_share_a_state_directory(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler, tmp_path: Path
) -> None:
    agent.start(config)
    await scheduler.sessions.connected()
    second = await AgentProcess.start(config, tmp_path)
    output = await second.output()
    assert second.process.returncode == ExitCode.CONFLICT
    assert output.strip().splitlines()[-1].startswith(f"farbus agent: state directory {config.state} is in use by")
    assert "Traceback" not in output


async def test_a_socket_of_a_live_agent_is_not_taken(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler, tmp_path: Path
) -> None:
    agent.start(config)
    await scheduler.sessions.connected()
    other = msgspec.structs.replace(config, state=str(tmp_path / "other"))
    with pytest.raises(Conflict, match="another agent serves this socket"):
        await serve(other, stop=asyncio.Event())


async def test_a_stale_socket_is_replaced(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler
) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(config.socket)
    agent.start(config)
    await scheduler.sessions.connected()


async def test_a_certificate_of_another_node_is_refused_at_once(
    config: AgentConfig, authority: Authority, tmp_path: Path
) -> None:
    credentials = write_credentials(tmp_path / "wrong", "n2", authority.issue("n2", Role.NODE))
    with pytest.raises(NotPermitted, match="it is of node n2, not of node n1"):
        await serve(msgspec.structs.replace(config, credentials=credentials))


async def test_a_state_directory_that_cannot_be_made_is_named(config: AgentConfig, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="file/state: Not a directory"):
        await serve(msgspec.structs.replace(config, state=str(tmp_path / "file" / "state")))
