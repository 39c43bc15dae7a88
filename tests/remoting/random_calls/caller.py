"""Make random calls of the driver API, from a seed, and print what each gave.

What is printed has no address and no handle of this process in it, so that two runs with the same seed, on a driver
itself and through the shim, print the same lines where the two behave alike.
"""

from __future__ import annotations

import ctypes
import os
import random
import sys
import zlib
from pathlib import Path
from typing import Any

from farbus.remoting.spec import ENTRIES, Answer, functions
from tests.remoting.random_calls.results import Results
from tests.remoting.random_calls.tables import HOST, KINDS, LACKING, LENIENT, NEVER
from tests.remoting.random_calls.things import Call
from tests.remoting.random_calls.types import Member


class Caller(Results):
    """Makes the calls."""

    def call(self, entry: Any) -> None:
        call = Call(wrong=int(self.random.random() < 0.3), symbol_parameters=entry.parameters)
        parameters = (
            [Member(text) for text in entry.parameters.split(",")] if entry.parameters not in ("", "void") else []
        )
        if any(member.counts for member in parameters):
            return
        # What a later argument depends on comes first.
        ordered = sorted(
            range(len(parameters)), key=lambda index: parameters[index].base not in ("CUfunction", "CUkernel")
        )
        values: list[Any] = [None] * len(parameters)
        words = [""] * len(parameters)
        for index in ordered:
            member = parameters[index]
            value, said = self.pointer(member, call) if member.stars else self.value(member, call)
            ctype = member.ctype
            values[index] = value if isinstance(value, ctypes.Structure | ctypes.Union) else ctype(value)
            words[index] = f"{member.name}={said}"
        if call.skip or (self.capturing and entry.symbol in LENIENT):
            return
        if call.alias:
            self.say(f"{entry.symbol} would take one object for another", end=True)
        self.settle(call, parameters, words)
        call.text = ", ".join(words)
        function = getattr(self.driver, entry.symbol)
        function.restype = ctypes.c_int
        self.line += 1
        print(f"{self.line} {entry.symbol}({', '.join(words)})", end="", flush=True)
        result = function(*values)
        if entry.symbol in ("cuStreamQuery", "cuEventQuery") and result == 600:
            result = 0
        said = self.outputs(entry, call, result) if result == 0 else ""
        print(f" -> {result}{said}", flush=True)
        self.kept += call.kept
        if result == 0:
            self.follow(entry, call, values, parameters)

    def settle(self, call: Call, parameters: list[Member], words: list[str]) -> None:
        """Wait where another stream than the last would run beside it, so that no two race."""
        streams = [
            word
            for member, word in zip(parameters, words, strict=True)
            if member.base == "CUstream" or "hStream=" in word
        ]
        stream = streams[0] if streams else "legacy"
        if stream != self.last_stream and not self.capturing:
            self.wait()
            self.heard()
        self.last_stream = stream

    def wait(self) -> None:
        """Wait for all that any context has to do."""
        popped = ctypes.c_void_p()
        for context in self.of("CUcontext"):
            if self.driver.cuCtxPushCurrent_v2(ctypes.c_void_p(context.value)) == 0:
                result = self.driver.cuCtxSynchronize()
                if result:
                    print(f"settled: {result}")
                self.driver.cuCtxPopCurrent_v2(ctypes.byref(popped))

    def heard(self) -> None:
        if self.called:
            print("heard:", ", ".join(self.called))
            self.called.clear()

    def follow(self, entry: Any, call: Call, values: list[Any], parameters: list[Member]) -> None:
        """What a call that succeeded has changed."""
        symbol = entry.symbol
        if symbol in ("cuStreamBeginCapture", "cuStreamBeginCapture_v2", "cuStreamBeginCaptureToGraph"):
            self.capturing = True
        if symbol == "cuStreamEndCapture":
            self.capturing = False
        arguments = {
            member.name: value.value if hasattr(value, "value") else value
            for member, value in zip(parameters, values, strict=True)
        }
        allocates = symbol.startswith(("cuMemAlloc", "cuMemAddressReserve")) and "Host" not in symbol
        if allocates and call.results:
            value = ctypes.c_uint64.from_buffer(call.results[0][1]).value
            size = next((arguments[name] for name in ("bytesize", "size") if name in arguments), 0)
            if "Pitch" in symbol:
                size = (
                    ctypes.c_size_t.from_buffer(call.results[1][1]).value * arguments["Height"]
                    if len(call.results) > 1
                    else 4
                )
            if "CUdeviceptr_v1" in entry.parameters:
                value &= 0xFFFFFFFF
            plain = symbol in ("cuMemAlloc_v2", "cuMemAlloc", "cuMemAllocManaged", "cuMemAllocPitch_v2")
            self.add("memory", value, size, "plain" if plain else symbol)
            if plain:
                self.driver.cuMemsetD8_v2(ctypes.c_uint64(value), self.line & 0xFF, ctypes.c_size_t(size))
                self.driver.cuCtxSynchronize()
        if symbol in ("cuMemHostAlloc", "cuMemAllocHost", "cuMemAllocHost_v2") and call.results:
            value = ctypes.c_uint64.from_buffer(call.results[0][1]).value
            self.add("host", value, arguments["bytesize"], "pinned")
            ctypes.memset(value, 0, min(arguments["bytesize"], HOST))
        if symbol in ("cuMemFree", "cuMemFree_v2", "cuMemFreeAsync", "cuMemFreeHost", "cuMemAddressFree"):
            value = arguments.get("dptr", arguments.get("ptr", arguments.get("p")))
            for thing in self.things:
                if thing.kind in ("memory", "host") and thing.value == value and thing.live:
                    thing.live = False
        if "Destroy" in symbol or symbol in ("cuModuleUnload", "cuLibraryUnload", "cuMemRelease"):
            first = values[0].value
            for thing in self.things:
                if (
                    thing.kind == KINDS.get(parameters[0].base, parameters[0].base)
                    and thing.value == first
                    and thing.live
                ):
                    thing.live = False
        if symbol in ("cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset_v2", "cuDevicePrimaryCtxRelease",
                      "cuDevicePrimaryCtxRelease_v2", "cuCtxDestroy", "cuCtxDestroy_v2", "cuCtxDetach",
                      "cuGreenCtxDestroy"):  # fmt: skip
            # What went with the context is not known here: memory that may be gone is not touched.
            self.say("contexts have changed", end=self.random.random() < 0.5)
            for thing in self.things:
                if thing.kind in ("host",) and thing.about:
                    thing.live = False

    def say(self, text: str, end: bool = False) -> None:
        print(text, flush=True)
        if end:
            self.finish()
            sys.exit(0)

    def finish(self) -> None:
        """Wait for all, and print what memory holds."""
        self.wait()
        self.heard()
        for thing in self.things:
            if not thing.live or thing.kind not in ("memory", "host"):
                continue
            size = min(thing.size, HOST)
            if thing.kind == "memory":
                if thing.about != "plain":
                    continue
                room = ctypes.create_string_buffer(size)
                result = self.driver.cuMemcpyDtoH_v2(room, ctypes.c_uint64(thing.value), ctypes.c_size_t(size))
                print(thing.name, result, zlib.crc32(room.raw) if not result else "", flush=True)
            else:
                print(thing.name, zlib.crc32(ctypes.string_at(thing.value, size)), flush=True)

    def begin(self) -> None:
        by_name = {entry.symbol: entry for entry in ENTRIES}
        assert self.driver.cuInit(0) == 0
        context = ctypes.c_void_p()
        self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
        self.driver.cuCtxSetCurrent(context)
        self.add("CUcontext", context.value or 0)
        first = {
            "cuStreamCreate": 2,
            "cuEventCreate": 2,
            "cuMemAlloc_v2": 3,
            "cuModuleLoadData": 1,
            "cuModuleGetFunction": 2,
            "cuGraphCreate": 2,
            "cuArrayCreate_v2": 1,
        }
        for symbol, times in first.items():
            for _ in range(times):
                self.call(by_name[symbol])


def weights(rng: random.Random, there: set[str]) -> tuple[list[Any], list[float]]:
    """Which functions a run has, and how often: a few chapters more than the others."""
    chapters = [name for name in dir(functions) if hasattr(getattr(functions, name), "ENTRIES") and name != "forms"]
    chosen = set(rng.sample(chapters, 3))
    if rng.random() < 0.4:
        chosen |= {"graphs", "graph_nodes", "streams"}
    entries, much = [], []
    for name in chapters:
        for entry in getattr(functions, name).ENTRIES:
            if (
                entry.answer is Answer.UNSUPPORTED
                or entry.symbol in NEVER | LACKING
                or entry.symbol not in there
                or entry.symbol.startswith(("cuCoredump", "cuProfiler"))
            ):
                continue
            weight = 8.0 if name in chosen else 1.0
            if entry.symbol.startswith(
                (
                    "cuCtxDestroy",
                    "cuDevicePrimaryCtxReset",
                    "cuDevicePrimaryCtxRelease",
                    "cuCtxDetach",
                    "cuDevicePrimaryCtxSetFlags",
                )
            ):
                weight = 0.15
            if "CUdeviceptr_v1" in entry.parameters:
                weight *= 0.3
            entries.append(entry)
            much.append(weight)
    return entries, much


def main(seed: int, steps: int, folder: Path) -> None:
    caller = Caller(seed, folder)
    caller.begin()
    entries, much = weights(caller.random, set((folder / "functions").read_text().split()))
    for _ in range(steps):
        caller.call(caller.random.choices(entries, much)[0])
    caller.finish()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
    sys.stdout.flush()
    # Destructors of what is left are nobody's affair.
    os._exit(0)
