"""Random graphs, launched, changed and launched again, against a model on the processor.

Words of a few buffers are mixed, filled and copied by nodes, made by hand or captured, in child graphs and clones; each
node depends on whoever used its buffers last.  Host functions note the order in which they ran.
"""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Callable
from typing import Any, Final

from tests.remoting.random_calls.tables import PTX
from tests.remoting.random_calls.types import STRUCTURES

WORDS: Final = 64
BUFFERS: Final = 4
MASK: Final = 0xFFFFFFFF

Step = Callable[[], None]


class Graphs:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.context, self.module = ctypes.c_void_p(), ctypes.c_void_p()
        self.check("cuInit", 0)
        self.check("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), 0)
        self.check("cuCtxSetCurrent", self.context)
        self.code = ctypes.create_string_buffer(PTX)
        self.check("cuModuleLoadData", ctypes.byref(self.module), self.code)
        self.functions = {}
        for name in (b"store", b"mix"):
            function = ctypes.c_void_p()
            self.check("cuModuleGetFunction", ctypes.byref(function), self.module, name)
            self.functions[name] = function
        self.stream = ctypes.c_void_p()
        self.check("cuStreamCreate", ctypes.byref(self.stream), 1)
        self.device: list[int] = []
        self.model: list[list[int]] = []
        for _ in range(BUFFERS):
            address = ctypes.c_uint64()
            self.check("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(4 * WORDS))
            self.check("cuMemsetD32_v2", address, 1, ctypes.c_size_t(WORDS))
            self.device.append(address.value)
            self.model.append([1] * WORDS)
        self.host = (ctypes.c_uint32 * WORDS)()
        self.ran: list[int] = []
        self.expected: list[int] = []
        self.function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: self.ran.append(data or 0))
        self.kept: list[Any] = []

    def check(self, name: str, *arguments: Any) -> None:
        result = getattr(self.driver, name)(*arguments)
        if result:
            sys.exit(f"{name} gave {result}")

    # Each maker gives the node's parameters, what it does in the model, and whose buffers it uses.

    def node(self) -> tuple[str, Any, Step, set[int]]:
        return self.random.choice([self.mix, self.mix, self.store, self.fill, self.copy, self.upload, self.call])()

    def word(self) -> tuple[int, int]:
        return self.random.randrange(BUFFERS), self.random.randrange(WORDS)

    def kernel(self, name: bytes, *words: Any) -> Any:
        pointers = (ctypes.c_void_p * len(words))(*(ctypes.addressof(word) for word in words))
        self.kept += [words, pointers]
        one = STRUCTURES["CUDA_KERNEL_NODE_PARAMS_v2"]()
        one.func, one.kernelParams = self.functions[name], ctypes.addressof(pointers)
        for axis in "XYZ":
            setattr(one, f"gridDim{axis}", 1)
            setattr(one, f"blockDim{axis}", 1)
        return one

    def at(self, buffer: int, word: int) -> ctypes.c_uint64:
        return ctypes.c_uint64(self.device[buffer] + 4 * word)

    def mix(self) -> tuple[str, Any, Step, set[int]]:
        (to, i), (source, j), by = self.word(), self.word(), self.random.randrange(1000)
        model = self.model

        def step() -> None:
            model[to][i] = (model[to][i] * 3 + model[source][j] + by) & MASK

        return (
            "Kernel",
            self.kernel(b"mix", self.at(to, i), self.at(source, j), ctypes.c_uint32(by)),
            step,
            {to, source},
        )

    def store(self) -> tuple[str, Any, Step, set[int]]:
        (to, i), value = self.word(), self.random.randrange(1 << 32)
        model = self.model

        def step() -> None:
            model[to][i] = value

        return "Kernel", self.kernel(b"store", self.at(to, i), ctypes.c_uint32(value)), step, {to}

    def fill(self) -> tuple[str, Any, Step, set[int]]:
        (to, i), value = self.word(), self.random.randrange(1 << 32)
        count = self.random.randrange(1, WORDS - i + 1)
        model = self.model
        one = STRUCTURES["CUDA_MEMSET_NODE_PARAMS_v1"]()
        one.dst, one.value, one.elementSize, one.width, one.height = self.at(to, i).value, value, 4, count, 1

        def step() -> None:
            model[to][i : i + count] = [value] * count

        return "Memset", one, step, {to}

    def copy(self) -> tuple[str, Any, Step, set[int]]:
        to, source = self.random.sample(range(BUFFERS), 2)
        i, j = self.random.randrange(WORDS), self.random.randrange(WORDS)
        count = self.random.randrange(1, WORDS - max(i, j) + 1)
        model = self.model
        one = self.linear(count)
        one.srcMemoryType, one.srcDevice = 2, self.at(source, j).value
        one.dstMemoryType, one.dstDevice = 2, self.at(to, i).value

        def step() -> None:
            model[to][i : i + count] = model[source][j : j + count]

        return "Memcpy", one, step, {to, source}

    def upload(self) -> tuple[str, Any, Step, set[int]]:
        """From memory of this process, which is read again at each launch."""
        to, i = self.word()
        count = self.random.randrange(1, WORDS - i + 1)
        model, host = self.model, self.host
        one = self.linear(count)
        one.srcMemoryType, one.srcHost = 1, ctypes.addressof(host)
        one.dstMemoryType, one.dstDevice = 2, self.at(to, i).value

        def step() -> None:
            model[to][i : i + count] = host[:count]

        return "Memcpy", one, step, {to}

    def linear(self, count: int) -> Any:
        one = STRUCTURES["CUDA_MEMCPY3D_v2"]()
        one.WidthInBytes, one.Height, one.Depth = 4 * count, 1, 1
        return one

    def call(self) -> tuple[str, Any, Step, set[int]]:
        token = self.random.randrange(1, 1 << 30)
        one = STRUCTURES["CUDA_HOST_NODE_PARAMS_v1"]()
        one.fn, one.userData = ctypes.cast(self.function, ctypes.c_void_p), token
        return "Host", one, lambda: self.expected.append(token), {-1}

    def graph(self, depth: int) -> tuple[ctypes.c_void_p, list[Step], list[tuple[ctypes.c_void_p, str, set[int]]]]:
        graph = ctypes.c_void_p()
        self.check("cuGraphCreate", ctypes.byref(graph), 0)
        last: dict[int, ctypes.c_void_p] = {}
        steps: list[Step] = []
        nodes: list[tuple[ctypes.c_void_p, str, set[int]]] = []
        for _ in range(self.random.randrange(1, 9)):
            node = ctypes.c_void_p()
            if depth and self.random.random() < 0.2:
                inner, inside, _ = self.graph(depth - 1)
                uses = {*range(BUFFERS), -1}
                self.add(graph, node, "ChildGraph", inner, uses, last)
                self.check("cuGraphDestroy", inner)
                steps += inside
            else:
                kind, parameters, step, uses = self.node()
                self.add(graph, node, kind, parameters, uses, last)
                steps.append(step)
                nodes.append((node, kind, uses))
        if self.random.random() < 0.3:
            clone = ctypes.c_void_p()
            self.check("cuGraphClone", ctypes.byref(clone), graph)
            self.check("cuGraphDestroy", graph)
            return clone, steps, []
        return graph, steps, nodes

    def add(
        self,
        graph: ctypes.c_void_p,
        node: ctypes.c_void_p,
        kind: str,
        parameters: Any,
        uses: set[int],
        last: dict[int, ctypes.c_void_p],
    ) -> None:
        before = {last[use].value for use in uses if use in last}
        dependencies = (ctypes.c_void_p * max(len(before), 1))(*before)
        given = [ctypes.byref(node), graph, dependencies, ctypes.c_size_t(len(before))]
        given.append(parameters if kind == "ChildGraph" else ctypes.byref(parameters))
        if kind in ("Memset", "Memcpy"):
            given.append(self.context)
        self.check(f"cuGraphAdd{kind}Node" + ("_v2" if kind == "Kernel" else ""), *given)
        for use in uses:
            last[use] = node

    def change(
        self, executable: ctypes.c_void_p, steps: list[Step], nodes: list[tuple[ctypes.c_void_p, str, set[int]]]
    ) -> None:
        """Give a kernel or a fill of an executable other parameters, which use the same buffers."""
        for index, (node, kind, uses) in enumerate(nodes):
            if kind not in ("Kernel", "Memset") or self.random.random() < 0.5 or len(nodes) != len(steps):
                continue
            for _ in range(40):
                other = self.fill() if kind == "Memset" else self.random.choice([self.store, self.mix])()
                if other[3] == uses and (kind != "Kernel" or self.same_function(node, other[1])):
                    break
            else:
                continue
            given = [executable, node, ctypes.byref(other[1])]
            if kind == "Memset":
                given.append(self.context)
            self.check(f"cuGraphExec{kind}NodeSetParams" + ("_v2" if kind == "Kernel" else ""), *given)
            steps[index] = other[2]

    def same_function(self, node: ctypes.c_void_p, parameters: Any) -> bool:
        one = STRUCTURES["CUDA_KERNEL_NODE_PARAMS_v2"]()
        self.check("cuGraphKernelNodeGetParams_v2", node, ctypes.byref(one))
        return bool(one.func == parameters.func)

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            graph, steps, nodes = self.graph(2)
            executable = ctypes.c_void_p()
            self.check("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
            if self.random.random() < 0.5:
                self.check("cuGraphDestroy", graph)
                nodes = []
            for launch in range(self.random.randrange(1, 6)):
                for index in range(WORDS):
                    self.host[index] = self.random.randrange(1 << 32)
                if launch and nodes:
                    self.change(executable, steps, nodes)
                self.check("cuGraphLaunch", executable, self.stream)
                for step in steps:
                    step()
                self.check("cuStreamSynchronize", self.stream)
                self.compare()
            self.check("cuGraphExecDestroy", executable)
            if nodes:
                self.check("cuGraphDestroy", graph)

    def compare(self) -> None:
        for index, address in enumerate(self.device):
            words = (ctypes.c_uint32 * WORDS)()
            self.check("cuMemcpyDtoH_v2", words, ctypes.c_uint64(address), ctypes.c_size_t(4 * WORDS))
            if list(words) != self.model[index]:
                sys.exit(f"buffer {index} has {list(words)}, not {self.model[index]}")
        if self.ran != self.expected:
            sys.exit(f"host functions ran as {self.ran}, not {self.expected}")


if __name__ == "__main__":
    Graphs(int(sys.argv[1])).run(int(sys.argv[2]))
    print("ok")
