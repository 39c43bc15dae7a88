"""The NVML door: which GPUs a driver has and how busy they are, from a child that can be stopped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from farbus.errors import FarbusError, TimedOut, Unavailable
from farbus.linux.processes import kill_process

ANSWER_TIMEOUT_S = 20.0
"""Longest wait for the worker.  The first call wakes every GPU, seconds each without persistence mode."""

ANSWER_LIMIT_BYTES = 1 << 20


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU as NVML describes it."""

    uuid: str
    name: str
    memory_bytes: int
    pci_address: str = ""
    compute_capability: str = ""
    numa_node: int = -1


class GpuSample(msgspec.Struct, frozen=True, kw_only=True):
    """How busy a GPU is: a fraction of the last second, and bytes in use."""

    uuid: str
    busy_fraction: float
    memory_used_bytes: int


class GpuList(msgspec.Struct, frozen=True, kw_only=True):
    """All GPUs of a driver.  ``absent`` says why there are none when there is no driver."""

    gpus: tuple[Gpu, ...] = ()
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


class WorkerNvml:
    """NVML in a worker process.  ``environment`` is added to the worker's, to choose the library."""

    def __init__(self, *, environment: Mapping[str, str] | None = None) -> None:
        self._environment = dict(environment or {})
        self._worker: asyncio.subprocess.Process | None = None
        # The worker answers in order: one question at a time.
        self._turn = asyncio.Lock()

    async def _ask(self, command: str) -> dict[str, Any]:
        async with self._turn:
            worker = self._worker or await self._start()
            assert worker.stdin is not None
            assert worker.stdout is not None
            line = b""
            try:
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    worker.stdin.write(command.encode() + b"\n")
                    with contextlib.suppress(ConnectionError):
                        await worker.stdin.drain()
                    line = await worker.stdout.readline()
            except TimeoutError as error:
                await self._end(kill=True)
                raise TimedOut(
                    f"NVML: no answer to {command} after {ANSWER_TIMEOUT_S:g} s", hint="see nvidia-smi and dmesg"
                ) from error
            except ValueError as error:
                await self._end(kill=True)
                raise Unavailable(f"NVML: its answer is longer than {ANSWER_LIMIT_BYTES} bytes") from error
            except BaseException:
                # The answer that was not waited for must not reach the next question.
                kill_process(worker)
                self._worker = None
                raise
            if not line:
                code = await self._end(kill=True)
                raise Unavailable(f"NVML: its worker died ({_how_it_ended(code)})", hint="did a GPU vanish? see dmesg")
            return msgspec.json.decode(line, type=dict[str, Any])

    async def _start(self) -> asyncio.subprocess.Process:
        try:
            self._worker = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "farbus.linux.nvml_worker",
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
                limit=ANSWER_LIMIT_BYTES, start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **self._environment},
            )  # fmt: skip
        except OSError as error:
            raise Unavailable(f"NVML: start its worker: {error.strerror}") from error
        return self._worker

    async def _end(self, *, kill: bool) -> int:
        worker, self._worker = self._worker, None
        if worker is None:
            return 0
        assert worker.stdin is not None
        worker.stdin.close()
        if kill:
            kill_process(worker)
        return await worker.wait()

    async def list(self) -> GpuList:
        """Ask for all GPUs."""
        answer = await self._ask("list")
        if "error" in answer:
            if answer["absent"]:
                # The worker has no driver to hold; a driver that is loaded later needs a new one.
                await self.stop()
                return GpuList(absent=answer["error"])
            raise Unavailable(f"NVML: {answer['error']}")
        return msgspec.convert(answer, GpuList)

    async def sample(self) -> Sequence[GpuSample]:
        """Ask how busy they are."""
        answer = await self._ask("sample")
        if "error" in answer:
            if answer["absent"]:
                return ()
            raise Unavailable(f"NVML: {answer['error']}")
        return msgspec.convert(answer["samples"], tuple[GpuSample, ...])

    async def stop(self) -> None:
        """End the worker; one that does not end by itself is killed."""
        async with self._turn:
            try:
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    await self._end(kill=False)
            except TimeoutError:
                return


def _how_it_ended(code: int) -> str:
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
