"""The NVML door: which GPUs a driver has and how busy they are, from a child that can be stopped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from farbus.errors import FarbusError, TimedOut, Unavailable
from farbus.linux.processes import kill_process
from farbus.linux.spawning import spawn

ANSWER_TIMEOUT_S = 20.0
"""Longest wait for the worker.  The first call wakes every GPU, seconds each without persistence mode."""

END_TIMEOUT_S = 5.0
"""Longest wait for a worker that was killed: one that hangs in the driver ends when that lets it, if ever."""

ANSWER_LIMIT_BYTES = 1 << 20

LIBRARY = "libnvidia-ml.so.1"

DRIVER = "nvidia"
"""What sysfs calls the driver whose devices NVML tells of."""

DRIVER_SIGNS = ("/sys/module/nvidia", "/dev/nvidiactl", "/etc/ld.so.cache")
"""What appears or changes when a driver is loaded, may be opened, or is installed."""

LISTS_PER_SEARCH = 20
"""Lists after which an absent driver is looked for though there is no sign of it: its library may be anywhere."""


Signs = tuple[tuple[int, int, int] | None, ...]


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU as NVML describes it; ``memory_bytes`` is 0 where it has none of its own, but the machine's."""

    uuid: str
    name: str
    memory_bytes: int
    pci_address: str = ""
    compute_capability: str = ""
    numa_node: int = -1


class GpuProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that computes on a GPU; ``memory_bytes`` is None where the driver does not tell."""

    pid: int
    memory_bytes: int | None = None


class GpuSample(msgspec.Struct, frozen=True, kw_only=True):
    """How a GPU is: fractions of the last second, bytes, watts, degrees, hertz; None where the GPU can't tell.

    Counters of errors and energy are those of the driver, since it was loaded;
    ``xids`` are the XID errors that came since the sample before.  What goes
    over PCI Express is measured while the GPU is busy: it takes 40 ms.
    """

    uuid: str
    busy_fraction: float
    memory_used_bytes: int
    memory_bytes: int | None = None
    memory_busy_fraction: float | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None
    sm_clock_hz: float | None = None
    memory_clock_hz: float | None = None
    energy_joules: float | None = None
    ecc_corrected_errors: int | None = None
    ecc_uncorrected_errors: int | None = None
    pcie_replays: int | None = None
    pcie_receive_bytes_per_s: float | None = None
    pcie_send_bytes_per_s: float | None = None
    processes: tuple[GpuProcess, ...] = ()
    xids: tuple[int, ...] = ()


class GpuList(msgspec.Struct, frozen=True, kw_only=True):
    """All GPUs of a driver.  ``absent`` says why there are none when there is no driver.

    ``troubles`` are those that the driver has and can't describe, in words.
    """

    gpus: tuple[Gpu, ...] = ()
    troubles: tuple[str, ...] = ()
    driver_version: str = ""
    cuda_version: str = ""
    absent: str = ""


class Nvml(Protocol):
    """One driver's GPUs."""

    async def list(self) -> GpuList:
        """Return the GPUs there are now.  Raises :class:`FarbusError` when the driver can't say."""
        ...

    async def sample(self) -> Sequence[GpuSample]:
        """Return how busy each is; empty when there is no driver."""
        ...

    async def stop(self) -> None:
        """Let go of the driver; the next call takes hold of it again."""
        ...

    def released(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Let go of the driver for a block: calls meanwhile raise :class:`Unavailable`.  Blocks may overlap."""
        ...


class WorkerNvml:
    """NVML in a worker process.  ``environment`` is added to the worker's, to choose the library."""

    def __init__(self, *, environment: Mapping[str, str] | None = None) -> None:
        self._environment = dict(environment or {})
        self._worker: asyncio.subprocess.Process | None = None
        self._stuck: asyncio.subprocess.Process | None = None
        """One that was killed and had not ended when it was waited for."""
        # The worker answers in order: one question at a time.
        self._turn = asyncio.Lock()
        self._absent: GpuList | None = None
        """What was answered when there was no driver; None while there is one."""
        self._absent_signs: Signs = ()
        self._lists_since = 0
        self._releases = 0

    async def _ask(self, command: str) -> dict[str, Any]:
        async with self._turn:
            if self._releases:
                raise Unavailable("NVML: let go of while a GPU is moved", hint="it is asked again afterwards")
            worker = self._worker or await self._start()
            assert worker.stdin is not None
            assert worker.stdout is not None
            line = b""
            try:
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    # uvloop's word for a worker that has been killed since the last question is RuntimeError.
                    with contextlib.suppress(ConnectionError, RuntimeError):
                        worker.stdin.write(command.encode() + b"\n")
                        await worker.stdin.drain()
                    line = await worker.stdout.readline()
            except TimeoutError as error:
                await self._end()
                raise TimedOut(
                    f"NVML: no answer to {command} after {ANSWER_TIMEOUT_S:g} s", hint="see nvidia-smi and dmesg"
                ) from error
            except ValueError as error:
                await self._end()
                raise Unavailable(f"NVML: its answer is longer than {ANSWER_LIMIT_BYTES} bytes") from error
            except BaseException:
                # The answer that was not waited for must not reach the next question.
                kill_process(worker)
                self._worker = None
                raise
            if not line:
                code = await self._end()
                raise Unavailable(f"NVML: its worker died ({_how_it_ended(code)})", hint="did a GPU vanish? see dmesg")
            return msgspec.json.decode(line, type=dict[str, Any])

    async def _start(self) -> asyncio.subprocess.Process:
        if self._stuck is not None and self._stuck.returncode is None:
            # Each further one would hang as well, and be there as long.
            raise Unavailable(
                f"NVML: its worker (pid {self._stuck.pid}) hangs in the driver and can't be ended",
                hint="see dmesg; if it does not end, reboot the node",
            )
        try:
            self._worker = await spawn(
                sys.executable, "-P", "-m", "farbus.linux.nvml_worker",
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
                limit=ANSWER_LIMIT_BYTES, start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **self._environment},
            )  # fmt: skip
        except OSError as error:
            raise Unavailable(f"NVML: start its worker: {error.strerror}") from error
        return self._worker

    async def _end(self, *, patience_s: float = 0.0) -> int | None:
        """End the worker, which is killed where it does not end by itself within ``patience_s``; return its exit code.

        None where there was none, and for one that hangs in the driver: that ends when the kernel lets it.
        """
        worker, self._worker = self._worker, None
        if worker is None:
            return None
        assert worker.stdin is not None
        worker.stdin.close()
        try:
            if patience_s:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(patience_s):
                        return await worker.wait()
        finally:
            # Nothing happens where it has ended.
            kill_process(worker)
        try:
            async with asyncio.timeout(END_TIMEOUT_S):
                return await worker.wait()
        except TimeoutError:
            self._stuck = worker
            return None

    async def list(self) -> GpuList:
        """Ask for all GPUs; where there was no driver, only if something speaks for one that has come.

        Else a node without GPUs would start a worker for each look at its devices, which costs more than all
        that an idle agent does.
        """
        # Before the question: what appears meanwhile is asked about the next time.
        signs = _signs_of_a_driver(self._environment)
        if self._absent is not None and signs == self._absent_signs and self._lists_since < LISTS_PER_SEARCH:
            self._lists_since += 1
            return self._absent
        self._absent = None
        answer = await self._ask("list")
        if "error" in answer:
            if answer["absent"]:
                # The worker has no driver to hold; a driver that is loaded later needs a new one.
                await self.stop()
                self._absent, self._absent_signs, self._lists_since = GpuList(absent=answer["error"]), signs, 1
                return self._absent
            raise Unavailable(f"NVML: {answer['error']}")
        return msgspec.convert(answer, GpuList)

    async def sample(self) -> Sequence[GpuSample]:
        """Ask how busy they are; not where the last list found no driver, which would start a worker for nothing."""
        if self._absent is not None:
            return ()
        answer = await self._ask("sample")
        if "error" in answer:
            if answer["absent"]:
                return ()
            raise Unavailable(f"NVML: {answer['error']}")
        return msgspec.convert(answer["samples"], tuple[GpuSample, ...])

    async def stop(self) -> None:
        """End the worker; one that does not end by itself is killed."""
        async with self._turn:
            await self._end(patience_s=ANSWER_TIMEOUT_S)

    @contextlib.asynccontextmanager
    async def released(self) -> AsyncIterator[None]:
        """End the worker and start none for the block."""
        self._releases += 1
        try:
            await self.stop()
            yield
        finally:
            self._releases -= 1


def _signs_of_a_driver(environment: Mapping[str, str]) -> Signs:
    """Return what is different once a worker with ``environment`` would find a driver."""
    directories = environment.get("LD_LIBRARY_PATH", os.environ.get("LD_LIBRARY_PATH", ""))
    libraries = [f"{directory}/{LIBRARY}" for directory in directories.split(":") if directory]
    return tuple(_stamp(path) for path in (*DRIVER_SIGNS, *libraries))


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    # The time of change: permissions that are given count too.
    return status.st_dev, status.st_ino, status.st_ctime_ns


def _how_it_ended(code: int | None) -> str:
    if code is None:
        return "it has not ended yet"
    return f"signal {-code}" if code < 0 else f"exit code {code}"


class FakeNvml:
    """GPUs that a test sets; ``trouble`` is raised by the next calls when it is set."""

    def __init__(self, gpus: GpuList | None = None, samples: Sequence[GpuSample] = ()) -> None:
        self.gpus = gpus or GpuList(absent="NVML Shared Library Not Found")
        self.samples = tuple(samples)
        self.trouble: FarbusError | None = None
        self.running = False

    async def list(self) -> GpuList:
        """Return the set GPUs."""
        if self.trouble:
            raise self.trouble
        self.running = not self.gpus.absent
        return self.gpus

    async def sample(self) -> Sequence[GpuSample]:
        """Return the set samples."""
        if self.trouble:
            raise self.trouble
        self.running = not self.gpus.absent
        return () if self.gpus.absent else self.samples

    async def stop(self) -> None:
        """Let go."""
        self.running = False

    @contextlib.asynccontextmanager
    async def released(self) -> AsyncIterator[None]:
        """Let go, and refuse meanwhile."""
        before, self.trouble = self.trouble, Unavailable("NVML: let go of while a GPU is moved")
        self.running = False
        try:
            yield
        finally:
            self.trouble = before
