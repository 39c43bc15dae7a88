"""``farbus up``: ready, found by other commands, restarted, stopped, and nothing left behind.

Nodes have no GPU here, so that nothing native is needed.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from farbus.agent import cdi
from farbus.cli import embedded
from farbus.cli.commands.up import (
    _check_gpu_settings,
    _further_gpu_settings,
    _read_scheduler_settings,
    _wait_for,
    rdma_address,
    tell_beginning,
    what_to_try,
)
from farbus.cli.embedded import Daemon, EmbeddedCluster, Plan, parse_nodes, remove_leftovers
from farbus.cli.runtime import RunningCluster, lock_holder, publish
from farbus.cli.runtime import lock as runtime_lock
from farbus.errors import Conflict, InvalidInput, NotFound
from farbus.linux.children import process_exists
from farbus.linux.files import FileLock
from farbus.linux.rdma import RdmaDevice
from farbus.model.value import from_json, to_json
from tests.cli.conftest import Farbus, clean_environment

NODES = "--nodes=left:0,right:0"


@pytest.mark.parametrize(
    ("settings", "further"),
    [("", ""), ("count=2,mem=1GiB", ""), ("cc=13.0", "cc=13.0"), ("sms=4,count=2,,cc=8.0", "sms=4,cc=8.0")],
)
def test_gpus_get_the_settings_that_no_option_is_for(settings: str, further: str) -> None:
    assert _further_gpu_settings(settings) == further


def test_settings_that_gpus_take_are_taken() -> None:
    asyncio.run(_check_gpu_settings("cc=13.0,watchdog_s=3"))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [("cc=14", "FARBUS_SOFTGPU: cc=14 is not a value"), ("threads=2", "FARBUS_SOFTGPU: unknown setting threads")],
)
def test_settings_that_gpus_refuse_are_refused_before_anything_is_started(settings: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{reason}"):
        asyncio.run(_check_gpu_settings(settings))


@pytest.mark.parametrize(("shares", "asks"), [(1, "--gpus 1"), (4, "--gpus 1 --gpu-share 1/4")])
def test_what_it_says_to_try_works_with_whole_gpus_and_with_shares(shares: int, asks: str) -> None:
    said = [line.split("   ")[0].strip() for line in what_to_try(shares)]
    assert {f"farbus run {asks} -- ./program", f"farbus submit {asks} -- ./program"} <= set(said)


def adapter(name: str, *addresses: str) -> RdmaDevice:
    return RdmaDevice(name=name, addresses=addresses, nodes=())


def test_commands_that_look_whether_one_runs_keep_none_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking = os.open(tmp_path / "up.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(looking, fcntl.LOCK_SH)
    monkeypatch.setattr(os, "sched_yield", lambda: fcntl.flock(looking, fcntl.LOCK_UN))
    with runtime_lock(tmp_path):
        assert lock_holder(tmp_path) == os.getpid()
        with pytest.raises(Conflict, match=f"runs already .pid {os.getpid()}."), runtime_lock(tmp_path):
            pass
    os.close(looking)


def test_nodes_of_the_same_names_have_gpus_of_their_own_in_each_state(tmp_path: Path) -> None:
    """Two of one user that run at a time: else one's programs met what the other's had left on the GPU."""

    def gpus_of(state: Path) -> list[str]:
        plan = Plan(nodes=parse_nodes("left:1,right:1"), gpu_memory_bytes=2**30)
        EmbeddedCluster(plan, state=state, sockets=tmp_path / "sockets", tell=print)._prepare()
        configs = (state / "nodes" / name / "config.json" for name in ("left", "right"))
        return [json.loads(config.read_bytes())["softgpu_node"] for config in configs]

    first, second = gpus_of(tmp_path / "first"), gpus_of(tmp_path / "second")
    assert len({*first, *second}) == 4
    assert gpus_of(tmp_path / "first") == first, "a state that is kept knows its GPUs again"


@pytest.mark.parametrize(("nodes", "told"), [("left:0", "a node"), ("left:1,right:1", "2 nodes")])
@pytest.mark.parametrize("at_terminal", [True, False])
def test_that_a_cluster_begins_is_said_at_a_terminal(
    nodes: str, told: str, at_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: at_terminal)
    tell_beginning(Plan(nodes=parse_nodes(nodes), gpu_memory_bytes=2**30))
    assert capsys.readouterr().err == (f"farbus: starting a scheduler and {told}\n" if at_terminal else "")


def test_by_rdma_nodes_have_the_address_of_a_device(tmp_path: Path) -> None:
    address = rdma_address(lambda: [adapter("mlx5_0"), adapter("rxe0", "10.0.0.7", "fd00::7")])
    assert address == "10.0.0.7"
    for rdma, settings in ((address, ("10.0.0.7", "on")), ("", ("127.0.0.1", "off"))):
        plan = Plan(nodes=parse_nodes("left:0"), gpu_memory_bytes=2**30, rdma_address=rdma)
        EmbeddedCluster(plan, state=tmp_path / "state", sockets=tmp_path / "sockets", tell=print)._prepare()
        config = json.loads((tmp_path / "state" / "nodes" / "left" / "config.json").read_bytes())
        assert (config["address"], config["remoting_rdma"]) == settings
    assert any(line.strip().startswith("farbus run --gpus 1 --transport rdma") for line in what_to_try(1, rdma=True))
    assert not any("rdma" in line for line in what_to_try(1))


@pytest.mark.parametrize(
    ("devices", "told", "cure"),
    [
        ([], "--rdma: this machine has no RDMA device", "rdma link show"),
        ([adapter("mlx5_0"), adapter("mlx5_1")], "--rdma: mlx5_0, mlx5_1: no active port with an address", "interface"),
    ],
)
def test_without_an_address_for_rdma_nothing_is_started(devices: list[RdmaDevice], told: str, cure: str) -> None:
    with pytest.raises(NotFound, match=f"^{told}") as caught:
        rdma_address(lambda: devices)
    assert cure in caught.value.hint


def test_the_memory_of_gpus_that_were_offered_in_shares_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "SHARED_MEMORY", tmp_path)
    board = tmp_path / "farbus-softgpu-a"
    board.touch()
    removed = remove_leftovers(directory=tmp_path / "up", state=None, devices=("GPU-a/1", "GPU-a/2"))
    assert removed == [str(board)]
    assert not board.exists()


def test_what_container_engines_were_told_is_removed_and_what_others_told_them_stays(tmp_path: Path) -> None:
    engines = tmp_path / "cdi"
    engines.mkdir()
    for name, state in (("mine", tmp_path / "up" / "state"), ("other", tmp_path / "up" / "state2")):
        session = state / "nodes" / "gamma" / "sessions" / "j1.main.0.session"
        content = cdi.specification("farbus.io/gpu=j1.main.0", {}, session=session, shim=Path("/shim"))
        (engines / f"farbus.{name}.json").write_bytes(content)
    removed = remove_leftovers(directory=tmp_path / "up", state=None, devices=(), cdi_directory=str(engines))
    assert removed == [str(engines / "farbus.mine.json")]
    assert [path.name for path in engines.iterdir()] == ["farbus.other.json"]


def test_what_runs_for_a_state_whose_path_begins_alike_is_left(tmp_path: Path) -> None:
    environment = {"FARBUS_UP_STATE": str(tmp_path / "state2"), "PATH": os.defpath}
    with subprocess.Popen(["sleep", "1000"], env=environment) as other:
        assert remove_leftovers(directory=tmp_path / "up", state=tmp_path / "state", devices=()) == []
        assert other.poll() is None
        other.kill()


def test_what_cannot_be_told_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    told = RunningCluster(pid=1, server="", credentials="", default_node="left", nodes=(), state="", devices=())
    with pytest.raises(OSError, match="No space left"):
        publish(tmp_path, told)
    assert left_in(tmp_path) == []


def test_what_a_detached_one_says_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other commands find it a moment before."""
    monkeypatch.setattr("farbus.cli.runtime.find_running_cluster", object)
    with open(tmp_path / "said", "w+") as said:
        monkeypatch.setattr("time.sleep", lambda _: print("cluster ready after 3.0 s", file=said, flush=True))
        assert _wait_for(os.getpid(), said) == "cluster ready after 3.0 s\n"


def test_down_beside_one_that_has_not_said_who_it_is(here: Farbus, tmp_path: Path) -> None:
    runtime = tmp_path / "farbus"
    runtime.mkdir(mode=0o700)
    with open(runtime / "up.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = here("down")
    told = "farbus: a farbus up of yours begins at this very moment; try again\n"
    assert (done.returncode, done.stderr) == (Conflict.exit_code, told)


class Up:
    """A ``farbus up`` as a process."""

    def __init__(self, process: subprocess.Popen[str], runtime: Path) -> None:
        self.process = process
        self.runtime = runtime

    @property
    def cluster(self) -> RunningCluster:
        """What it tells other commands."""
        return from_json((self.runtime / "farbus" / "up.json").read_bytes(), RunningCluster)

    def child(self, name: str) -> psutil.Process:
        """The daemon that serves ``name``: scheduler, or a node."""
        for child in psutil.Process(self.process.pid).children():
            command = child.cmdline()
            if command[-1].endswith(f"{name}/config.json"):
                return child
        raise AssertionError(f"no child {name}")

    def line(self, beginning: str) -> str:
        """Wait for a line of its output that begins so."""
        for stream in (self.process.stdout,):
            assert stream is not None
            for line in stream:
                if line.startswith(beginning):
                    return line.strip()
        raise AssertionError(f"it ended without saying {beginning}")


def start(runtime: Path, *arguments: str) -> Up:
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "farbus.cli", "up", NODES, *arguments],
        env=clean_environment(runtime), cwd=runtime, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    up = Up(process, runtime)
    up.line("cluster ready")
    up.line("Stop it")
    return up


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    """A cluster of two nodes."""
    running = start(tmp_path)
    yield running
    running.process.kill()
    running.process.wait()
    assert running.process.stdout is not None
    running.process.stdout.close()


def left_in(runtime: Path) -> list[str]:
    return sorted(str(path.relative_to(runtime)) for path in runtime.rglob("*"))


def test_other_commands_find_it_and_it_stops_without_a_trace(up: Up, farbus: Farbus, tmp_path: Path) -> None:
    nodes = json.loads(farbus("nodes", "-o", "json").stdout)
    assert [(node["node"]["name"], node["state"]) for node in nodes] == [("left", "ready"), ("right", "ready")]
    children = psutil.Process(up.process.pid).children(recursive=True)
    up.process.send_signal(signal.SIGINT)
    assert up.process.wait(timeout=30) == 0
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)
    assert left_in(tmp_path) == []
    assert farbus("nodes").returncode == 6


def test_a_second_one_is_refused(up: Up, farbus: Farbus) -> None:
    for arguments in (("up", NODES), ("up", NODES, "--detach")):
        done = farbus(*arguments)
        assert done.returncode == Conflict.exit_code
        assert (
            done.stderr
            == f"farbus: a farbus up of yours runs already (pid {up.process.pid}); stop it with farbus down\n"
        )
    assert farbus("nodes").returncode == 0


def test_down_stops_it(up: Up, farbus: Farbus, tmp_path: Path) -> None:
    done = farbus("down")
    assert (done.returncode, done.stdout) == (0, "stopped\n")
    assert up.process.wait(timeout=30) == 0
    assert left_in(tmp_path) == []


def test_who_follows_a_job_does_not_wait_for_one_that_was_stopped(up: Up, farbus: Farbus, tmp_path: Path) -> None:
    following = subprocess.Popen(
        [sys.executable, "-P", "-m", "farbus.cli", "submit", "--follow", "--", "sh", "-c", "echo begun; sleep 1000"],
        env=clean_environment(tmp_path), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with following:
        assert following.stdout is not None
        assert following.stdout.readline() == "begun\n"
        assert farbus("down").returncode == 0
        # Else it would be two minutes.
        assert following.wait(timeout=60) != 0
        assert following.stderr is not None
        told = "farbus: farbus up was stopped, with all that ran in it; start another with farbus up"
        assert following.stderr.read().splitlines()[-1] == told


@pytest.mark.parametrize("victim", ["scheduler", "left"])
def test_a_daemon_that_is_killed_is_started_again(up: Up, farbus: Farbus, victim: str) -> None:
    up.child(victim).send_signal(signal.SIGKILL)
    name = victim if victim == "scheduler" else f"node {victim}"
    assert up.line(f"farbus: {name}").startswith(f"farbus: {name} was ended by signal 9")
    # A job ends only when the scheduler and this node are there again and agree.
    done = farbus("submit", "--wait", "-q", "--node", "left", "--", "true")
    for _ in range(100):
        if done.returncode == 0:
            break
        done = farbus("submit", "--wait", "-q", "--node", "left", "--", "true")
    assert (done.returncode, done.stderr) == (0, "")


def test_when_it_is_killed_its_daemons_end_and_the_next_one_starts(up: Up, farbus: Farbus, tmp_path: Path) -> None:
    children = psutil.Process(up.process.pid).children(recursive=True)
    up.process.kill()
    up.process.wait()
    assert psutil.wait_procs(children, timeout=30)[1] == []
    assert farbus("nodes").returncode == 6
    again = start(tmp_path)
    assert farbus("nodes").returncode == 0
    assert farbus("down").returncode == 0
    assert again.process.wait(timeout=30) == 0
    assert again.process.stdout is not None
    again.process.stdout.close()
    assert left_in(tmp_path) == []


def test_down_ends_what_a_killed_one_has_left(up: Up, farbus: Farbus, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pid")
    assert farbus("submit", "--", "sh", "-c", "echo $$ > pid; exec sleep 1000").returncode == 0
    pid = int((tmp_path / "pid").read_text())
    up.process.kill()
    up.process.wait()
    # It waits for its agent, which may come back.
    assert process_exists(pid)
    done = farbus("down")
    assert (done.returncode, done.stdout) == (
        0, "no farbus up of yours runs; ended what a killed one had left\n"
    )  # fmt: skip
    assert not process_exists(pid)
    assert left_in(tmp_path) == ["pid"]
    assert farbus("down").stdout == "no farbus up of yours runs\n"


def begun(runtime: Path) -> subprocess.Popen[bytes]:
    """Start one, and return it when it has its state, long before it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "farbus.cli", "up", NODES], env=clean_environment(runtime), cwd=runtime
    )
    lock = runtime / "farbus" / "up" / "state" / "up.lock"
    while not lock.exists():
        assert process.poll() is None
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_one_that_is_not_ready_yet_and_is_its_exit_code(tmp_path: Path, number: int) -> None:
    process = begun(tmp_path)
    process.send_signal(number)
    assert process.wait(timeout=30) == 128 + number
    assert left_in(tmp_path) == []


def test_down_removes_what_one_has_left_that_was_killed_while_it_began(farbus: Farbus, tmp_path: Path) -> None:
    process = begun(tmp_path)
    process.kill()
    process.wait()
    assert farbus("down").stdout == "no farbus up of yours runs; ended what a killed one had left\n"
    assert left_in(tmp_path) == []


def test_detached_it_returns_when_it_is_ready(farbus: Farbus, tmp_path: Path) -> None:
    done = farbus("up", NODES, "--detach")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("cluster ready")
    assert farbus("nodes").returncode == 0
    assert farbus("down").returncode == 0
    assert left_in(tmp_path) == []


def test_a_chosen_state_is_kept_and_used_again(farbus: Farbus, tmp_path: Path) -> None:
    for _ in range(2):
        assert farbus("up", NODES, "--detach", "--state", "kept").returncode == 0
        assert farbus("submit", "--wait", "-q", "--", "true").returncode == 0
        jobs = json.loads(farbus("jobs", "--all", "-o", "json").stdout)
        assert farbus("down").returncode == 0
    assert len(jobs) == 2
    assert sorted(os.listdir(tmp_path)) == ["kept"]


def test_a_state_that_holds_other_things_is_refused_and_left_as_it_is(here: Farbus, tmp_path: Path) -> None:
    others = tmp_path / "others"
    (others / "scheduler").mkdir(parents=True)
    (others / "scheduler" / "ledger.lock").touch()
    for more in ((), ("--detach",)):
        done = here("up", NODES, "--state", str(others), *more)
        assert (done.returncode, done.stderr) == (
            7,
            f"farbus: {others} can't be the directory of a farbus up: it holds other things, 'scheduler' among them; "
            "name one that is empty or not there\n",
        )
    assert [path.name for path in others.rglob("*")] == ["scheduler", "ledger.lock"]


@pytest.mark.parametrize("name", ["logs", "scheduler/config.json"])
def test_what_is_in_the_way_in_a_state_is_named(here: Farbus, tmp_path: Path, name: str) -> None:
    way = tmp_path / "kept" / name
    way.parent.mkdir(parents=True)
    (tmp_path / "kept" / "up.lock").touch()
    if name == "logs":
        way.touch()
    else:
        way.mkdir()
    for more in ((), ("--detach",)):
        done = here("up", NODES, "--state", str(tmp_path / "kept"), *more)
        assert done.returncode == InvalidInput.exit_code
        told = rf"farbus: {way}: [A-Z][a-z ]+; see that nothing is in the way and .* --state\n"
        assert re.fullmatch(told, done.stderr)


async def test_why_a_daemon_ended_is_told_also_where_it_was_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "FIRST_PAUSE_S", 0.0)
    os.mkfifo(tmp_path / "again")
    script = f"cd {tmp_path}; if [ -e once ]; then echo > again; exec sleep 1000; fi"
    script += "; touch once; echo 'farbus scheduler: no room'; exit 6"
    daemon = Daemon("scheduler", ["/bin/sh", "-c", script], {"PATH": os.defpath}, tmp_path / "log")
    cluster = EmbeddedCluster(
        Plan(nodes=parse_nodes("left:0"), gpu_memory_bytes=2**30), state=tmp_path, sockets=tmp_path, tell=print
    )
    cluster._daemons = [daemon]
    running = asyncio.create_task(daemon.run(print, asyncio.Event()))
    try:
        await asyncio.to_thread((tmp_path / "again").read_bytes)
        failure = cluster._failure()
        assert (str(failure), failure.exit_code) == ("scheduler does not start: no room", 6)
    finally:
        running.cancel()
        await daemon.stop()


def test_a_state_is_of_one_at_a_time_and_nobody_else_ends_what_runs_there(farbus: Farbus, tmp_path: Path) -> None:
    state = tmp_path / "kept"
    state.mkdir()
    lock = FileLock(state / "up.lock", what="the state")
    done = farbus("up", NODES, "--state", str(state))
    assert (done.returncode, done.stderr) == (
        7, f"farbus: --state {state} is in use by process {os.getpid()}; stop it or choose another\n"
    )  # fmt: skip
    # What a killed one had told of itself, before another took its state.
    runtime = tmp_path / "farbus"
    runtime.mkdir(mode=0o700)
    told = RunningCluster(pid=1, server="", credentials="", default_node="left", nodes=(), state=str(state), devices=())
    (runtime / "up.json").write_bytes(to_json(told))
    with subprocess.Popen(["sleep", "1000"], env={"FARBUS_UP_STATE": str(state), "PATH": os.defpath}) as daemon:
        farbus("down")
        assert daemon.poll() is None
        lock.release()
        runtime.mkdir(mode=0o700, exist_ok=True)
        (runtime / "up.json").write_bytes(to_json(told))
        farbus("down")
        assert daemon.wait(timeout=30) == -signal.SIGKILL


@pytest.fixture(scope="module")
def shared_up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A cluster of two nodes for tests that leave it as it is."""
    running = start(tmp_path_factory.mktemp("up"))
    yield running
    running.process.terminate()
    running.process.wait()
    assert running.process.stdout is not None
    running.process.stdout.close()


@pytest.fixture
def ask(farbus: Farbus, shared_up: Up) -> Farbus:
    """Run a command that finds the shared cluster."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return farbus(*arguments, environment={"XDG_RUNTIME_DIR": str(shared_up.runtime)})

    return run


def test_a_program_runs_as_on_a_chosen_node(ask: Farbus) -> None:
    done = ask("run", "-q", "--gpus", "0", "--node", "right", "--", "sh", "-c", "exit 5")
    assert (done.returncode, done.stderr) == (5, "")
    done = ask("run", "--node", "middle", "--", "true")
    assert (done.returncode, done.stderr) == (125, "farbus: this farbus up has no node middle; it has left, right\n")


def test_a_program_that_is_not_there_fails_its_job(ask: Farbus) -> None:
    done = ask("submit", "--wait", "-q", "--", "./none")
    assert done.returncode == 127


def test_what_the_cluster_can_never_have_is_refused(ask: Farbus) -> None:
    done = ask("submit", "--gpus", "1", "--", "true")
    assert done.returncode == 4
    assert done.stderr.count("\n") == 1


def test_a_port_in_use_is_named(shared_up: Up, farbus: Farbus) -> None:
    server = shared_up.cluster.server
    farbus("ca", "init", "--authority", "ca")
    farbus("ca", "issue", "scheduler", "--role", "scheduler", "--out", "credentials", "--authority", "ca")
    done = farbus("scheduler", "--listen", server, "--state", "state", "--credentials", "credentials")
    assert done.returncode == Conflict.exit_code
    assert f"can't listen on {server}: the address is in use" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_certificate_of_another_authority_reaches_nothing(shared_up: Up, farbus: Farbus) -> None:
    server = shared_up.cluster.server
    farbus("ca", "init", "--authority", "ca")
    farbus("ca", "issue", "eve", "--role", "operator", "--out", "eve", "--authority", "ca")
    done = farbus("nodes", "--server", server, "--credentials", "eve")
    assert done.returncode != 0
    assert done.stdout == ""
    assert done.stderr.startswith(f"farbus: scheduler at {server}")
    assert done.stderr.count("\n") == 1


def test_a_certificate_of_its_own_reaches_the_scheduler(shared_up: Up, farbus: Farbus) -> None:
    cluster = shared_up.cluster
    done = farbus("nodes", "--server", cluster.server, "--credentials", cluster.credentials)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('policy = "bst-fit"', "policy: there is none called 'bst-fit'; use one of default, "),
        ("preemtion = true", "preemtion: unknown field; did you mean preemption?"),
        ("quota = { devices = -1 }", "quota.devices: -1 is less than zero; leave it out for no limit"),
        ('listen = "0.0.0.0:7411"', "listen: farbus up sets it itself; leave it out"),
    ],
)
def test_settings_that_can_not_be_are_told_before_anything_starts(
    here: Farbus, tmp_path: Path, text: str, told: str
) -> None:
    path = tmp_path / "scheduler.toml"
    path.write_text(text + "\n")
    done = here("up", NODES, "--config", str(path))
    assert done.returncode == InvalidInput.exit_code
    assert done.stderr.startswith(f"farbus: {path}: {told}")


def test_the_scheduler_is_given_what_a_file_sets(tmp_path: Path) -> None:
    path = tmp_path / "scheduler.toml"
    path.write_text('policy = "best-fit"\nlease_ttl_s = 60\n')
    plan = Plan(nodes=parse_nodes("left:0"), gpu_memory_bytes=2**30, scheduler=_read_scheduler_settings(str(path)))
    EmbeddedCluster(plan, state=tmp_path / "state", sockets=tmp_path / "sockets", tell=print)._prepare()
    config = json.loads((tmp_path / "state" / "scheduler" / "config.json").read_bytes())
    assert (config["policy"], config["lease_ttl_s"]) == ("best-fit", 60)
    assert config["state"] == str(tmp_path / "state" / "scheduler")
