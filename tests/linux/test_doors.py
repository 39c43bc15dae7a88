"""The smaller doors: each real one beside its fake."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import gc
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
import uvloop

from farbus.errors import Conflict, NotFound, TimedOut, Unavailable
from farbus.linux import links, nvml
from farbus.linux.blocking import BlockingCaller
from farbus.linux.cgroups import Cgroups, FakeCgroups, KernelCgroups
from farbus.linux.clock import Clock, FakeClock, SystemClock
from farbus.linux.files import (
    FileLock,
    check_state_directory,
    make_directory,
    make_owned_directory,
    make_state_directory,
    write_owned,
)
from farbus.linux.links import LinkTable, NetworkLink
from farbus.linux.node_facts import FakeNodeFacts, KernelNodeFacts, NodeFacts
from farbus.linux.notify import SystemdNotifier
from farbus.linux.nvml import FakeNvml, Gpu, GpuList, GpuProcess, GpuSample, Nvml, WorkerNvml
from farbus.linux.process_states import FakeProcessStates, KernelProcessStates, ProcessStates
from farbus.linux.shared_memory import FakeSharedMemory, KernelSharedMemory, SharedMemory
from farbus.linux.sysfs import FakeSysfs, KernelSysfs, NvmeController, PciFunction, Sysfs
from farbus.linux.users import Account, FakeUsers, SystemUsers, Users
from farbus.remoting import paths

# The clock.


@pytest.fixture(params=["real", "fake"])
def clock(request: pytest.FixtureRequest) -> Clock:
    return SystemClock() if request.param == "real" else FakeClock()


async def test_sleeping_moves_the_clock(clock: Clock) -> None:
    before = clock.monotonic()
    sleeping = asyncio.create_task(clock.sleep(0.0625))
    await asyncio.sleep(0)
    if isinstance(clock, FakeClock):
        await clock.advance(0.0625)
    await sleeping
    assert clock.monotonic() - before >= 0.0625


async def test_a_sleep_of_nothing_returns(clock: Clock) -> None:
    await clock.sleep(0)
    await clock.sleep(-1)


async def test_the_fake_clock_wakes_sleepers_in_their_order() -> None:
    clock = FakeClock()
    woken: list[int] = []

    async def sleeper(seconds: int) -> None:
        await clock.sleep(seconds)
        woken.append(seconds)

    tasks = [asyncio.create_task(sleeper(seconds)) for seconds in (3, 1, 2)]
    await asyncio.sleep(0)
    await clock.advance(2)
    assert woken == [1, 2]
    await clock.advance(1)
    await asyncio.gather(*tasks)
    assert woken == [1, 2, 3]


# Users.

ROOT = Account(name="root", uid=0, gid=0, groups=(0,), home="/root", shell="/bin/bash")


@pytest.fixture(params=["real", "fake"])
def users(request: pytest.FixtureRequest) -> Users:
    return SystemUsers() if request.param == "real" else FakeUsers([ROOT])


def test_root_is_known_by_name_and_number(users: Users) -> None:
    assert users.by_name("root").uid == 0
    assert users.by_uid(0).name == "root"
    assert users.by_name("root").gid in users.by_name("root").groups


def test_an_unknown_user_is_named(users: Users) -> None:
    with pytest.raises(NotFound, match="user no-such-user: not known on this node"):
        users.by_name("no-such-user")
    with pytest.raises(NotFound, match="user id 4123456: not known"):
        users.by_uid(4123456)


# The node.


@pytest.fixture(params=["real", "fake"])
def facts(request: pytest.FixtureRequest) -> NodeFacts:
    return KernelNodeFacts() if request.param == "real" else FakeNodeFacts()


def test_facts_are_plausible(facts: NodeFacts) -> None:
    assert len(facts.boot_id()) == 36
    assert facts.boot_id() == facts.boot_id()
    assert facts.cpu_count() >= 1
    assert 0 < facts.memory_used_bytes() < facts.memory_bytes()
    assert {"user", "idle"} <= facts.cpu_times().keys()
    assert all(spent >= 0 for spent in facts.cpu_times().values())
    assert facts.load1() >= 0
    assert all(resource in ("cpu", "memory", "io") for resource, _ in facts.pressure())
    own = facts.own_use()
    assert own.cpu_s >= 0
    assert own.resident_bytes > 0
    assert own.open_files > 0
    assert all(link.name != "lo" for link in facts.links())


def test_pressure_is_read_in_seconds(tmp_path: Path) -> None:
    (tmp_path / "pressure").mkdir()
    (tmp_path / "pressure/io").write_text(
        "some avg10=0.00 avg60=0.58 avg300=0.32 total=2464219\nfull avg10=0.00 avg60=0.56 avg300=0.30 total=2286644\n"
    )
    (tmp_path / "pressure/cpu").write_text("")
    facts = KernelNodeFacts(proc=str(tmp_path))
    assert facts.pressure() == {("io", "waiting"): 2.464219, ("io", "stalled"): 2.286644}


def test_the_counts_of_the_node_are_read_anew_each_time(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu  100 0 50 1000 20 0 0 0 7 0\ncpu0 100 0 50 1000 20 0 0 0 7 0\n")
    (tmp_path / "meminfo").write_text("MemTotal:  1000 kB\nMemFree:  1 kB\nMemAvailable:  400 kB\n")
    facts = KernelNodeFacts(proc=str(tmp_path))
    ticks = os.sysconf("SC_CLK_TCK")
    assert facts.cpu_times()["user"] == 100 / ticks
    assert facts.cpu_times()["iowait"] == 20 / ticks
    assert not {"guest", "guest_nice"} & facts.cpu_times().keys()
    assert facts.memory_used_bytes() == 600 * 1024
    (tmp_path / "stat").write_text("cpu  200 0 50 1000 20 0 0 0 7 0\n")
    (tmp_path / "meminfo").write_text("MemTotal:  1000 kB\nMemAvailable:  300 kB\n")
    assert facts.cpu_times()["user"] == 200 / ticks
    assert facts.memory_used_bytes() == 700 * 1024


def test_a_file_of_the_kernels_that_could_not_be_read_is_read_when_it_can(tmp_path: Path) -> None:
    facts = KernelNodeFacts(proc=str(tmp_path))
    assert facts.pressure() == {}
    (tmp_path / "pressure").mkdir()
    (tmp_path / "pressure/cpu").write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=5000000\n")
    assert facts.pressure() == {("cpu", "waiting"): 5.0}


def test_what_sysfs_says_of_links_is_asked_for_when_their_carrier_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Kernel(LinkTable):
        changes = 1

        def _dump(self) -> list[links._Seen]:
            return [links._Seen(NetworkLink(name="eth0", up=True), (2, 0x41, self.changes))]

    (tmp_path / "class/net/eth0/device").mkdir(parents=True)
    speed = tmp_path / "class/net/eth0/speed"
    speed.write_text("1000\n")
    table = Kernel(sysfs=str(tmp_path))
    assert [link.speed_mbit for link in table.read()] == [1000]
    speed.write_text("10000\n")
    assert [link.speed_mbit for link in table.read()] == [1000]
    table.changes = 2
    assert [link.speed_mbit for link in table.read()] == [10000]
    # A virtual link's is set without that.
    monkeypatch.setattr(links, "_LOOKS_PER_SPEED", 3)
    speed.write_text("25000\n")
    assert [link.speed_mbit for link in table.read()] == [25000]


def test_the_speed_of_a_link_is_found_by_its_address(tmp_path: Path) -> None:
    from pyroute2 import IPRoute

    with IPRoute() as kernel:
        index = {message["index"]: message.get_attr("IFLA_IFNAME") for message in kernel.get_links()}
        addresses = {message.get_attr("IFA_ADDRESS"): index[message["index"]] for message in kernel.get_addr()}
    assert addresses
    for number, name in enumerate(sorted(set(addresses.values()))):
        (tmp_path / "class/net" / name).mkdir(parents=True)
        (tmp_path / "class/net" / name / "speed").write_text(f"{1000 + number}\n")
    table = LinkTable(sysfs=str(tmp_path))
    for address, name in addresses.items():
        speed = int((tmp_path / "class/net" / name / "speed").read_text())
        assert table.speed_of([address]) == speed
    # TEST-NET-1 of RFC 5737: nobody has it.
    assert table.speed_of(["192.0.2.1"]) == 0
    assert table.speed_of([]) == 0


@pytest.mark.parametrize("host", ["10.0.0.1", "::1", "fe80::1%eth0"])
async def test_an_address_needs_no_resolution(host: str) -> None:
    assert await links.resolved(host) == (host,)


async def test_a_host_is_resolved_and_one_that_nobody_knows_has_no_address() -> None:
    assert {"127.0.0.1", "::1"} & set(await links.resolved("localhost"))
    assert await links.resolved("nobody.invalid") == ()


def test_links_are_told_again_with_a_new_socket_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    table = LinkTable()
    names = [link.name for link in table.read()]
    assert table._kernel is not None
    table._kernel.close()
    with pytest.raises(Unavailable, match="network links"):
        table.read()
    assert [link.name for link in table.read()] == names


def test_links_are_those_that_pyroute2_finds() -> None:
    from pyroute2 import IPRoute

    with IPRoute() as kernel:
        found = {message.get_attr("IFLA_IFNAME"): message for message in kernel.get_links()}
    listed = LinkTable().read()
    assert listed
    for link in listed:
        message = found[link.name]
        assert link.up == (message["flags"] & 0x41 == 0x41)
        stats = message.get_attr("IFLA_STATS64")
        # Traffic goes on between the two looks.
        assert stats["rx_bytes"] <= link.receive_bytes
        assert stats["tx_packets"] <= link.send_packets


# Calls that may hang.


async def test_a_blocking_call_returns_or_raises_what_it_does() -> None:
    caller = BlockingCaller("test")
    assert await caller.call(lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        await caller.call(lambda: 1 // 0)
    assert await caller.call(lambda: 6) == 6


async def test_a_call_that_hangs_is_left_behind_and_no_other_begun() -> None:
    caller = BlockingCaller("test")
    hanging, started = threading.Event(), threading.Event()

    def hang() -> None:
        started.set()
        hanging.wait()

    call = asyncio.create_task(caller.call(hang))
    await asyncio.to_thread(started.wait)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    with pytest.raises(Unavailable, match="test: the call before still hangs"):
        await caller.call(lambda: 5)
    hanging.set()
    while True:
        with contextlib.suppress(Unavailable):
            assert await caller.call(lambda: 5) == 5
            break
        await asyncio.sleep(0)


async def test_a_caller_that_nobody_has_any_more_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    caller = BlockingCaller("test")
    assert await caller.call(lambda: 5) == 5
    (thread,) = set(threading.enumerate()) - before
    del caller
    gc.collect()
    await asyncio.to_thread(thread.join)


# What the kernel does with a process.


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "infinity"]) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("kind", ["real", "fake"])
def test_a_process_that_is_stopped_is_told_from_one_that_runs(kind: str, child: subprocess.Popen[bytes]) -> None:
    fake = FakeProcessStates()
    states: ProcessStates = KernelProcessStates() if kind == "real" else fake
    assert not states.is_stopped(child.pid)
    child.send_signal(signal.SIGSTOP)
    # Returns once it has stopped.
    os.waitpid(child.pid, os.WUNTRACED)
    fake.stopped.add(child.pid)
    assert states.is_stopped(child.pid)
    child.send_signal(signal.SIGCONT)
    os.waitid(os.P_PID, child.pid, os.WCONTINUED)
    fake.stopped.discard(child.pid)
    assert not states.is_stopped(child.pid)
    assert not states.is_stopped(2**22 + 1)


def test_the_state_of_a_process_is_told_whatever_its_name_is(tmp_path: Path) -> None:
    (tmp_path / "812").mkdir()
    (tmp_path / "812/stat").write_bytes(b"812 (a) T (b) S 1 812")
    (tmp_path / "813").mkdir()
    (tmp_path / "813/stat").write_bytes(b"813 (a) S (b) T 1 813")
    states = KernelProcessStates(proc=str(tmp_path))
    assert [states.is_stopped(pid) for pid in (812, 813)] == [False, True]


# Memory that another process shares.


@pytest.fixture(params=["real", "fake"])
def shared(request: pytest.FixtureRequest) -> Iterator[tuple[SharedMemory, int]]:
    if request.param == "fake":
        yield FakeSharedMemory({(41, "figures"): b"one, two"}), 41
        return
    descriptor = os.memfd_create("figures")
    os.write(descriptor, b"one, two")
    yield KernelSharedMemory(), os.getpid()
    os.close(descriptor)


def test_shared_memory_is_read_by_name(shared: tuple[SharedMemory, int]) -> None:
    door, pid = shared
    assert door.read(pid, "figures", limit_bytes=100) == b"one, two"
    assert door.read(pid, "figures", limit_bytes=3) == b"one"
    with pytest.raises(NotFound, match=f"shared memory other of process {pid}: it has none"):
        door.read(pid, "other", limit_bytes=100)


def test_shared_memory_is_found_again_under_another_descriptor() -> None:
    door = KernelSharedMemory()
    first = os.memfd_create("figures")
    os.write(first, b"1")
    assert door.read(os.getpid(), "figures", limit_bytes=10) == b"1"
    second = os.memfd_create("figures")
    os.write(second, b"2")
    os.close(first)
    assert door.read(os.getpid(), "figures", limit_bytes=10) == b"2"
    os.close(second)


def test_a_process_that_is_gone_shares_nothing() -> None:
    with pytest.raises(NotFound, match="No such file or directory"):
        KernelSharedMemory().read(2**22 + 1, "figures", limit_bytes=1)


# sysfs.

FUNCTION = PciFunction(address="0000:17:00.0", vendor=0x10DE, device=0x2330, pci_class=0x030200, driver="nvidia")
CONTROLLER = NvmeController(
    name="nvme0",
    serial="S1",
    model="A drive",
    transport="pcie",
    address="0000:18:00.0",
    subsystem_nqn="nqn.2014.08.org.nvmexpress:S1",
    capacity_bytes=512 * 1000,
)


def write_tree(root: Path) -> None:
    """Lay out the two devices as the kernel does, with a broken one of each."""
    devices = root / "bus/pci/devices"
    function = devices / "0000:17:00.0"
    function.mkdir(parents=True)
    for name, text in {"vendor": "0x10de", "device": "0x2330", "class": "0x030200", "numa_node": "-1"}.items():
        (function / name).write_text(f"{text}\n")
    (root / "bus/pci/drivers/nvidia").mkdir(parents=True)
    (function / "driver").symlink_to("../../drivers/nvidia")
    (devices / "0000:99:00.0").mkdir()
    (devices / "not-an-address").mkdir()
    controller = root / "class/nvme/nvme0"
    (controller / "nvme0n1").mkdir(parents=True)
    (controller / "nvme0n1/size").write_text("1000\n")
    texts = {
        "serial": "S1   ",
        "model": "A drive  ",
        "transport": "pcie",
        "address": "0000:18:00.0",
        "subsysnqn": "nqn.2014.08.org.nvmexpress:S1",
    }
    for name, text in texts.items():
        (controller / name).write_text(f"{text}\n")
    (root / "class/nvme/nvme1").mkdir()


@pytest.fixture(params=["real", "fake"])
def sysfs(request: pytest.FixtureRequest, tmp_path: Path) -> Sysfs:
    if request.param == "fake":
        return FakeSysfs((FUNCTION,), (CONTROLLER,))
    write_tree(tmp_path)
    return KernelSysfs(str(tmp_path))


def test_devices_are_read_and_broken_ones_left_out(sysfs: Sysfs) -> None:
    assert sysfs.pci_functions() == (FUNCTION,)
    assert sysfs.nvme_controllers() == (CONTROLLER,)


def test_a_drive_that_the_kernel_is_still_asking_who_it_is_is_left_out(tmp_path: Path) -> None:
    write_tree(tmp_path)
    controller = tmp_path / "class/nvme/nvme0"
    # Linux 6.1, for a tenth of a second after the drive has come.
    for name in ("serial", "model", "subsysnqn"):
        (controller / name).write_text("(efault)\n")
    assert KernelSysfs(str(tmp_path)).nvme_controllers() == ()


def test_what_firmware_says_of_a_drive_can_be_told(tmp_path: Path) -> None:
    write_tree(tmp_path)
    controller = tmp_path / "class/nvme/nvme0"
    for name in ("serial", "model", "subsysnqn"):
        (controller / name).write_bytes(b"S\x01\xe9\x1b[2J  \n")
    (found,) = KernelSysfs(str(tmp_path)).nvme_controllers()
    assert {found.serial, found.model, found.subsystem_nqn} == {"S\\x01\N{REPLACEMENT CHARACTER}\\x1b[2J"}


def test_a_tree_without_devices_is_empty(tmp_path: Path) -> None:
    assert KernelSysfs(str(tmp_path)).pci_functions() == ()
    assert KernelSysfs(str(tmp_path)).nvme_controllers() == ()


# NVML.

GPUS = GpuList(
    gpus=(Gpu(uuid="GPU-1", name="A GPU", memory_bytes=2**30, pci_address="0000:17:00.0", compute_capability="9.0"),),
    driver_version="570.1",
    cuda_version="12.8",
)
SAMPLES = (
    GpuSample(
        uuid="GPU-1",
        busy_fraction=0.25,
        memory_used_bytes=2**20,
        memory_bytes=2**30,
        memory_busy_fraction=0.5,
        power_watts=312.5,
        temperature_celsius=64.0,
        sm_clock_hz=1.98e9,
        memory_clock_hz=2.619e9,
        energy_joules=7.0,
        ecc_corrected_errors=2,
        ecc_uncorrected_errors=1,
        pcie_receive_bytes_per_s=3000.0,
        pcie_send_bytes_per_s=4000.0,
        processes=(GpuProcess(pid=41, memory_bytes=2**19), GpuProcess(pid=42)),
    ),
)

# Stands where the worker imports the binding: what NVML would say of one GPU.
BINDING = """
import atexit, os, time
class NVMLError(Exception): pass
class NVMLError_LibraryNotFound(NVMLError): pass
class NVMLError_DriverNotLoaded(NVMLError): pass
class NVMLError_NoPermission(NVMLError): pass
class NVMLError_NotSupported(NVMLError): pass
class Record:
    def __init__(self, **fields): self.__dict__.update(fields)
def nvmlInit():
    if os.environ.get("TEST_NVML") == "absent": raise NVMLError_LibraryNotFound("NVML Shared Library Not Found")
    if os.environ.get("TEST_NVML") == "stays": atexit.register(time.sleep, 1000)
def nvmlDeviceGetCount():
    if os.environ.get("TEST_NVML") == "crash": os.abort()
    if os.environ.get("TEST_NVML") == "hang": time.sleep(1000)
    if os.environ.get("TEST_NVML") == "error": raise NVMLError("Unknown Error")
    return 3 if os.environ.get("TEST_NVML") == "broken" else 2
def nvmlDeviceGetHandleByIndex(index):
    if index == 1: raise NVMLError("GPU is lost")
    return "broken" if index else "handle"
def nvmlDeviceGetUUID(handle):
    if handle == "broken": raise NVMLError("Unknown Error")
    return b"GPU-1"
def nvmlDeviceGetName(handle): return "A GPU"
def nvmlDeviceGetMemoryInfo(handle):
    if os.environ.get("TEST_NVML") == "integrated": raise NVMLError_NotSupported("Not Supported")
    return Record(total=2**30, used=2**20)
def nvmlDeviceGetPciInfo(handle): return Record(domain=0, bus=0x65 if handle == "broken" else 0x17, device=0)
def nvmlDeviceGetCudaComputeCapability(handle): return (9, 0)
def nvmlDeviceGetNumaNodeId(handle): raise NVMLError("Not Supported")
NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 0, 1
NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 0, 1, 0
NVML_TEMPERATURE_GPU, NVML_CLOCK_SM, NVML_CLOCK_MEM = 0, 1, 2
nvmlEventTypeXidCriticalError = 8
def nvmlDeviceGetUtilizationRates(handle):
    return Record(gpu=0 if os.environ.get("TEST_NVML") == "idle" else 25, memory=50)
def nvmlDeviceGetPcieThroughput(handle, direction):
    assert os.environ.get("TEST_NVML") != "idle"
    return {0: 4, 1: 3}[direction]
def nvmlDeviceGetTotalEccErrors(handle, kind, counter): return {0: 2, 1: 1}[kind]
def nvmlDeviceGetClockInfo(handle, clock): return {1: 1980, 2: 2619}[clock]
def nvmlDeviceGetPowerUsage(handle): return 312500
def nvmlDeviceGetTemperature(handle, sensor): return 64
def nvmlDeviceGetTotalEnergyConsumption(handle): return 7000
def nvmlDeviceGetPcieReplayCounter(handle): raise NVMLError("Not Supported")
def nvmlDeviceGetComputeRunningProcesses(handle):
    return [Record(pid=41, usedGpuMemory=2**19), Record(pid=42, usedGpuMemory=None)]
registered, happened = [], [31, 79]
def nvmlEventSetCreate():
    if os.environ.get("TEST_NVML") != "xid": raise NVMLError("Not Supported")
    return "events"
def nvmlDeviceRegisterEvents(handle, types, events): registered.append((handle, types, events))
def nvmlEventSetWait_v2(events, timeout_ms):
    assert registered == [("handle", 8, "events")] and timeout_ms == 0
    if not happened: raise NVMLError("Timeout")
    return Record(device="handle", eventData=happened.pop(0))
def nvmlSystemGetDriverVersion(): return "570.1"
def nvmlSystemGetCudaDriverVersion(): return 12080
"""


def worker(directory: Path, mode: str = "") -> WorkerNvml:
    """Return the real door with that binding in place of NVIDIA's."""
    (directory / "pynvml.py").write_text(BINDING)
    root = str(Path(nvml.__file__).parents[2])
    return WorkerNvml(environment={"PYTHONPATH": f"{directory}:{root}", "TEST_NVML": mode})


@pytest.fixture(params=["real", "fake"])
def present(request: pytest.FixtureRequest, tmp_path: Path) -> Nvml:
    return worker(tmp_path) if request.param == "real" else FakeNvml(GPUS, SAMPLES)


@pytest.fixture(params=["real", "fake"])
def absent(request: pytest.FixtureRequest, tmp_path: Path) -> Nvml:
    return worker(tmp_path, "absent") if request.param == "real" else FakeNvml()


async def test_gpus_are_listed_and_sampled_also_after_a_stop(present: Nvml) -> None:
    assert await present.list() == GPUS
    assert await present.sample() == SAMPLES
    await present.stop()
    await present.stop()
    assert await present.list() == GPUS
    await present.stop()


async def test_while_it_is_released_nobody_asks_the_driver(present: Nvml) -> None:
    await present.list()
    async with present.released():
        for ask in (present.list, present.sample):
            with pytest.raises(Unavailable, match="NVML: let go of while a GPU is moved"):
                await ask()
    assert await present.sample() == SAMPLES
    await present.stop()


async def test_a_gpu_that_is_broken_hides_no_other(tmp_path: Path) -> None:
    door = worker(tmp_path, "broken")
    found = await door.list()
    assert (found.gpus, found.troubles) == (GPUS.gpus, ("GPU at 0000:65:00.0: Unknown Error",))
    assert await door.sample() == SAMPLES
    await door.stop()


async def test_a_gpu_without_memory_of_its_own_is_listed(tmp_path: Path) -> None:
    door = worker(tmp_path, "integrated")
    assert [(gpu.uuid, gpu.memory_bytes) for gpu in (await door.list()).gpus] == [("GPU-1", 0)]
    assert [(one.memory_used_bytes, one.memory_bytes) for one in await door.sample()] == [(0, None)]
    await door.stop()


async def test_an_xid_error_is_told_once(tmp_path: Path) -> None:
    door = worker(tmp_path, "xid")
    assert [sample.xids for sample in await door.sample()] == [(31, 79)]
    assert [sample.xids for sample in await door.sample()] == [()]
    await door.stop()


async def test_an_idle_gpu_is_not_asked_for_what_takes_time(tmp_path: Path) -> None:
    door = worker(tmp_path, "idle")
    (sample,) = await door.sample()
    assert (sample.busy_fraction, sample.pcie_receive_bytes_per_s) == (0.0, None)
    await door.stop()


async def test_no_worker_is_started_to_sample_what_is_absent(tmp_path: Path) -> None:
    door = worker(tmp_path, "absent")
    await door.list()
    (tmp_path / "pynvml.py").write_text("raise SystemExit('started again')")
    assert not await door.sample()


async def test_an_absent_driver_is_asked_for_again_when_there_is_a_sign_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign = tmp_path / "nvidiactl"
    monkeypatch.setattr(nvml, "DRIVER_SIGNS", (str(sign),))
    door = worker(tmp_path, "absent")
    missing = await door.list()
    door._environment["TEST_NVML"] = ""
    assert await door.list() == missing
    sign.touch()
    assert (await door.list()).gpus
    assert await door.sample()
    await door.stop()


async def test_an_absent_driver_is_found_without_a_sign_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml, "LISTS_PER_SEARCH", 2)
    door = worker(tmp_path, "absent")
    door._environment["LD_LIBRARY_PATH"] = ""
    await door.list()
    door._environment["TEST_NVML"] = ""
    assert (await door.list()).absent
    assert (await door.list()).gpus
    await door.stop()


async def test_no_driver_is_no_error(absent: Nvml) -> None:
    assert (await absent.list()).absent == "NVML Shared Library Not Found"
    assert not await absent.sample()
    await absent.stop()


async def test_a_worker_that_crashes_is_told_and_replaced(tmp_path: Path) -> None:
    door = worker(tmp_path, "crash")
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"its worker died \(signal 6\)"):
            await door.list()


def test_a_worker_that_is_killed_between_two_questions_is_told_and_replaced(tmp_path: Path) -> None:
    async def ask_twice() -> None:
        door = worker(tmp_path)
        await door.list()
        assert door._worker is not None
        door._worker.kill()
        await door._worker.wait()
        with pytest.raises(Unavailable, match=r"its worker died \(signal 9\)"):
            await door.list()
        assert (await door.list()).gpus
        await door.stop()

    # As the agent does.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(ask_twice())


async def test_an_error_of_the_driver_is_told(tmp_path: Path) -> None:
    door = worker(tmp_path, "error")
    with pytest.raises(Unavailable, match="NVML: Unknown Error"):
        await door.list()
    await door.stop()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("gpus=2", "FARBUS_SOFTGPU: unknown setting gpus; write for instance count=2,cc=9.0,mem=8GiB,sms=16"),
        ("count=2,cc=9.9", r"FARBUS_SOFTGPU: cc=9\.9 is not a value that it can have"),
    ],
)
async def test_a_wrong_setting_of_software_gpus_is_named(settings: str, said: str) -> None:
    library = paths.software_gpu_directory() / "libnvidia-ml.so.1"
    if not library.is_file():
        pytest.skip("the software GPU is not built: run make -C native")
    door = WorkerNvml(environment={"LD_LIBRARY_PATH": str(library.parent), "FARBUS_SOFTGPU": settings})
    with pytest.raises(Unavailable, match=f"NVML: Unknown Error: softgpu: {said}"):
        await door.list()
    await door.stop()


async def test_a_worker_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "ANSWER_TIMEOUT_S", 0.5)
    with pytest.raises(TimedOut, match="no answer to list"):
        await worker(tmp_path, "hang").list()


async def test_a_worker_that_does_not_end_by_itself_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    door = worker(tmp_path, "stays")
    await door.list()
    process = door._worker
    assert process is not None
    monkeypatch.setattr(nvml, "ANSWER_TIMEOUT_S", 0.1)
    await door.stop()
    assert process.returncode == -signal.SIGKILL


class Stuck:
    """A worker in a call of its driver that does not return: nothing ends it."""

    pid = 0
    returncode: int | None = None

    def __init__(self) -> None:
        self.stdin = self.stdout = self

    def write(self, line: bytes) -> None:
        """Take a question."""

    def close(self) -> None:
        """Take no more."""

    async def drain(self) -> None:
        """Take it at once."""

    async def readline(self) -> NoReturn:
        await asyncio.Event().wait()
        raise AssertionError

    async def wait(self) -> NoReturn:
        await asyncio.Event().wait()
        raise AssertionError


@pytest.mark.parametrize("stops", [False, True])
async def test_a_worker_that_nothing_ends_holds_nobody_up_and_is_no_first_of_many(
    stops: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    door, stuck = worker(tmp_path), Stuck()
    with monkeypatch.context() as patched:
        for limit in ("ANSWER_TIMEOUT_S", "END_TIMEOUT_S"):
            patched.setattr(nvml, limit, 0.01)
        patched.setattr(nvml, "kill_process", lambda process: None)
        door._worker = stuck  # type: ignore[assignment]
        if stops:
            await door.stop()
        else:
            with pytest.raises(TimedOut, match="no answer to list"):
                await door.list()
    with pytest.raises(Unavailable, match=r"its worker \(pid 0\) hangs in the driver and can't be ended; see dmesg"):
        await door.list()
    stuck.returncode = -9
    assert (await door.list()).gpus
    await door.stop()


# Control groups.


@pytest.fixture(params=["real", "fake"])
def cgroups(request: pytest.FixtureRequest) -> Iterator[Cgroups]:
    if request.param == "fake":
        yield FakeCgroups()
        return
    real = KernelCgroups(agent=f"test-{os.getpid()}")
    if real.trouble:
        pytest.skip(real.trouble)
    yield real
    real.close()


def test_a_group_is_made_listed_and_removed(cgroups: Cgroups) -> None:
    assert cgroups.create("j1.main.0", memory_bytes=2**30, cpu_milli=1000)
    assert cgroups.create("j1.main.0", memory_bytes=2**30, cpu_milli=1000)
    assert list(cgroups.list()) == ["j1.main.0"]
    assert not cgroups.out_of_memory("j1.main.0")
    cgroups.remove("j1.main.0")
    cgroups.remove("j1.main.0")
    assert list(cgroups.list()) == []


def test_without_groups_it_says_why_and_does_nothing(tmp_path: Path) -> None:
    (tmp_path / "mounts").write_text("proc /proc proc rw 0 0\n")
    door = KernelCgroups(agent="n1", mounts=str(tmp_path / "mounts"))
    assert door.trouble == "cgroup version 2 is not mounted"
    assert door.create("a", memory_bytes=1, cpu_milli=1) == ""
    door.remove("a")
    assert not door.list()


# Files.


def test_a_lock_is_held_by_one(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "lock", what="the state")
    with pytest.raises(Conflict, match=f"the state is in use by process {os.getpid()}"):
        FileLock(tmp_path / "lock", what="the state")
    lock.release()
    FileLock(tmp_path / "lock", what="the state").release()


def test_what_a_lock_s_holder_notes_is_there_for_the_next(tmp_path: Path) -> None:
    first = FileLock(tmp_path / "lock", what="the state")
    assert first.noted == b""
    first.note(b"begun\n")
    first.release()
    second = FileLock(tmp_path / "lock", what="the state")
    assert second.noted == b"begun\n"
    with pytest.raises(Conflict, match=f"the state is in use by process {os.getpid()};"):
        FileLock(tmp_path / "lock", what="the state")
    second.release()


def test_a_file_system_without_locks_is_told_from_a_lock_that_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_here(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", none_here)
    with pytest.raises(Unavailable, match="lock: No locks available; choose a directory of a local disk"):
        FileLock(tmp_path / "lock", what="the state")


def test_an_owned_file_is_private_and_whole(tmp_path: Path) -> None:
    write_owned(tmp_path / "session", b"one", account=None)
    write_owned(tmp_path / "session", b"two", account=None)
    assert (tmp_path / "session").read_bytes() == b"two"
    assert (tmp_path / "session").stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["session"]


def test_a_durable_file_is_on_the_disk_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    sync = os.fsync

    def note(descriptor: int) -> None:
        synced.append((Path(os.readlink(f"/proc/self/fd/{descriptor}")), sorted(os.listdir(tmp_path))))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    write_owned(tmp_path / "membership", b"one", account=None, durable=True)
    (content, _), (names, there) = synced
    assert (content.parent, names, there) == (tmp_path, tmp_path, ["membership"])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a directory away")
def test_a_directory_whose_maker_was_killed_before_it_changed_hands_does_so(tmp_path: Path) -> None:
    nobody = Account(name="nobody", uid=65534, gid=65534)
    half_made, kept = tmp_path / "half-made", tmp_path / "kept"
    half_made.mkdir(mode=0o700)
    kept.mkdir(mode=0o750)
    os.chown(kept, 1000, 1000)
    for path in (half_made, kept, tmp_path / "new"):
        make_owned_directory(path, account=nobody)
    assert [path.stat().st_uid for path in (half_made, kept, tmp_path / "new")] == [65534, 1000, 65534]


def test_a_directory_gets_its_mode_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        make_directory(tmp_path / "a" / "b", mode=0o711)
    finally:
        os.umask(before)
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o711


def test_a_directory_that_holds_other_things_is_left_as_it_is(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    (tmp_path / "passwd").touch()
    with pytest.raises(Conflict, match=r"can't be the directory of an agent's state: it holds .* 'passwd' among them"):
        make_state_directory(tmp_path, mode=0o711, marks=("lock",), what="an agent's state")
    assert tmp_path.stat().st_mode & 0o777 == 0o750
    assert os.listdir(tmp_path) == ["passwd"]


@pytest.mark.parametrize("there", [(), ("lost+found",), ("lock", "journal.db")])
def test_a_directory_that_is_ours_gets_its_mode(tmp_path: Path, there: tuple[str, ...]) -> None:
    for name in there:
        (tmp_path / name).touch()
    make_state_directory(tmp_path, mode=0o711, marks=("lock",), what="an agent's state")
    assert tmp_path.stat().st_mode & 0o777 == 0o711


def test_a_directory_is_ours_by_a_path_below_it(tmp_path: Path) -> None:
    (tmp_path / "scheduler").mkdir()
    with pytest.raises(Conflict, match="'scheduler' among them; name one that is empty or not there"):
        check_state_directory(tmp_path, marks=("scheduler/config.json",), what="a farbus up")
    (tmp_path / "scheduler" / "config.json").touch()
    check_state_directory(tmp_path, marks=("scheduler/config.json",), what="a farbus up")


def test_a_file_or_a_link_to_itself_is_no_state_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("link")
    for name, reason in (("file", "Not a directory"), ("link", "Too many levels of symbolic links")):
        with pytest.raises(Unavailable, match=f"{name}: {reason}; name a directory for a farbus up"):
            check_state_directory(tmp_path / name, marks=("lock",), what="a farbus up")


def test_no_lock_is_taken_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "others").write_text("something of theirs")
    (tmp_path / "lock").symlink_to("others")
    with pytest.raises(Unavailable, match="lock: it is a link, and no lock; remove it"):
        FileLock(tmp_path / "lock", what="state directory")
    assert (tmp_path / "others").read_text() == "something of theirs"


# Service notification.


def test_states_go_to_the_socket_that_the_environment_names(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        notifier = SystemdNotifier({"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "30000000"})
        notifier.tell("READY=1")
        assert manager.recv(100) == b"READY=1"
    assert notifier.watchdog_s == 15.0
    notifier.tell("STOPPING=1")


def test_without_a_manager_nothing_is_told() -> None:
    notifier = SystemdNotifier({})
    notifier.tell("READY=1")
    assert notifier.watchdog_s == 0.0
