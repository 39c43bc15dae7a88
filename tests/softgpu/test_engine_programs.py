"""CUDA kernels on the engine: what they compute, and how they fail."""

import ctypes
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.softgpu.engine import ROOT, EngineError, Module, Status, compile_cuda, form_names, nvcc, run_nvcc

KERNELS = Path(__file__).parent / "kernels"
pytestmark = pytest.mark.skipif(nvcc() is None, reason="kernels are compiled with nvcc, which is not installed")


@pytest.fixture(scope="module", params=["sm_75", "sm_80", "sm_90", "sm_120"])
def basics(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    out = tmp_path_factory.mktemp("basics") / "basics.ptx"
    with Module(compile_cuda(KERNELS / "basics.cu", out, arch=request.param, flags=["-fmad=false"])) as module:
        yield module


def test_vector_add_leaves_out_threads_beyond_the_end(basics: Module) -> None:
    n = 100_003
    a, b = np.arange(n, dtype=np.float32), np.full(n, 0.5, np.float32)
    c = np.zeros(n + 5, np.float32)
    basics.launch("vector_add", (n + 255) // 256, 256, a, b, c, n)
    np.testing.assert_array_equal(c, np.append(a + b, np.zeros(5, np.float32)))


def test_reduction(basics: Module) -> None:
    values = np.random.default_rng(1).integers(-1000, 1000, 300_000, dtype=np.int32)
    out = np.zeros(1, np.int32)
    basics.launch("sum", 37, 256, values, out, len(values))
    assert out[0] == values.sum()


def test_tiled_matmul_is_exact_without_contraction(basics: Module) -> None:
    n = 96
    a, b = np.random.default_rng(2).random((2, n, n)).astype(np.float32)
    c = np.zeros((n, n), np.float32)
    basics.launch("matmul", (n // 16, n // 16), (16, 16), a, b, c, n)
    expected = np.zeros((n, n), np.float32)
    for k in range(n):
        expected += a[:, k : k + 1] * b[k]
    np.testing.assert_array_equal(c, expected)


def test_divergence_and_recursion(basics: Module) -> None:
    out = np.zeros(2048, np.int32)
    basics.launch("diverge", 8, 256, out)
    fibonacci = [0, 1]
    while len(fibonacci) < 12:
        fibonacci.append(fibonacci[-1] + fibonacci[-2])

    def collatz(value: int) -> int:
        steps = 0
        while value != 1:
            value = 3 * value + 1 if value & 1 else value >> 1
            steps += 1
        return steps

    assert out.tolist() == [collatz(i + 1) + (fibonacci[i % 12] if i % 7 == 0 else 0) for i in range(2048)]


def test_function_pointers_that_differ_within_a_warp(basics: Module) -> None:
    out = np.zeros(96, np.int32)
    basics.launch("indirect", 1, 96, out)
    assert out.tolist() == [(2 * i, i * i, -i)[i % 3] for i in range(96)]


def test_switch_and_local_arrays(basics: Module) -> None:
    values = np.arange(200, dtype=np.int32) * 13 % 97
    out = np.zeros(200, np.int32)
    basics.launch("switches", 1, 200, values, out)
    table = [lambda v: v + 1, lambda v: v * 3, lambda v: v - 5, lambda v: -v, lambda v: v ^ 0x55, lambda v: v * v,
             lambda v: (v & 7) * v, lambda v: 1000, lambda v: 1000]  # fmt: skip
    assert out.tolist() == [table[v % 9](v) for v in values.tolist()]


def test_lanes_of_a_warp_can_take_a_lock_in_turn(basics: Module) -> None:
    before = ctypes.c_int.from_address(basics.variable("counter").address).value
    out = np.zeros(1, np.int32)
    basics.launch("spin_lock", 2, 64, out)
    assert out[0] == before + 128


def test_atomics(basics: Module) -> None:
    f, d = np.zeros(1, np.float32), np.zeros(1)
    u, low, wrapped = np.zeros(1, np.uint64), np.zeros(1, np.int32), np.zeros(1, np.uint32)
    basics.launch("atomics", 50, 100, f, d, u, low, wrapped)
    assert (f[0], d[0], u[0], low[0], wrapped[0]) == (5000, 2500, 4999 * 2500, -4999, 5000 % 7)


def test_votes(basics: Module) -> None:
    values = (np.arange(64, dtype=np.int32) * 37) % 101
    out = np.zeros((64, 6), np.uint32)
    basics.launch("votes", 1, 64, values, out)
    can_reduce = basics.info("votes").ptx_version >= 80
    for start in (0, 32):
        warp = values[start : start + 32].tolist()
        mask = [sum(1 << k for k in range(32) if test(warp[k])) for test in (lambda v: v > 50, lambda v: v % 3 == 0)]
        for lane, v in enumerate(warp):
            row = out[start + lane]
            assert row[4] == (sum(warp) if can_reduce else 0)
            assert row[0] == mask[0]
            assert (row[1], row[2]) == (max(warp) > 98, 1)
            assert row[3] == sum(1 << k for k in range(32) if warp[k] & 3 == v & 3)
            assert row[5] == (mask[1] if v % 3 == 0 else 0)


def test_barrier_reductions(basics: Module) -> None:
    values = np.arange(100, dtype=np.int32)
    out = np.zeros((100, 3), np.int32)
    basics.launch("barrier_reductions", 1, 100, values, out)
    assert (out[:, 0] == 89).all()
    assert not out[:, 1].any()
    assert out[:, 2].all()


def test_dynamic_shared_memory(basics: Module) -> None:
    out = np.zeros(64, np.int32)
    basics.launch("dynamic_shared", 1, 64, out, shared=256)
    assert out.tolist() == [3 * (63 - i) for i in range(64)]


def test_grid_sync(basics: Module) -> None:
    n = 1024
    x = np.arange(n, dtype=np.int32) * 3
    expected = x.copy()
    for _ in range(5):
        expected = np.roll(expected, -1) + 1
    basics.launch("grid_sync", 8, 128, x, n, cooperative=True)
    np.testing.assert_array_equal(x, expected)


def test_printf(basics: Module) -> None:
    printed: list[str] = []
    basics.launch("hello", 1, 8, 42, on_print=printed.append)
    assert printed == [
        "hello 42 from 0: text  0.00 q 123456789ab%\n",
        "hello 42 from 1: text  1.50 q 123456789ab%\n",
    ]


def test_device_heap(basics: Module) -> None:
    out = np.zeros(64, np.int32)
    basics.launch("heap", 1, 64, out)
    assert out.tolist() == list(range(1, 65))


def test_vector_loads_and_stores(basics: Module) -> None:
    values = np.arange(256, dtype=np.float32).reshape(64, 4)
    out = np.zeros((64, 4), np.float32)
    basics.launch("vectors", 1, 64, values, out)
    np.testing.assert_array_equal(out, values[:, ::-1])


def test_initialised_constants_and_pointers(basics: Module) -> None:
    out = np.zeros(8, np.int32)
    basics.launch("constants", 1, 8, out)
    assert out.tolist() == [(i % 4 + 1) * 10 + ord("zo"[i % 2]) for i in range(8)]


# ---- failures: each is named, and the engine runs on ----


def expect_failure(module: Module, status: Status, name: str, *args: object, **options: object) -> EngineError:
    with pytest.raises(EngineError) as caught:
        module.launch(name, 4, 64, *args, **options)
    assert caught.value.status == status, caught.value
    out = np.zeros(8, np.int32)
    module.launch("constants", 1, 8, out)
    assert out[0] == 10 + ord("z")
    return caught.value


def test_illegal_address_names_the_place(basics: Module) -> None:
    error = expect_failure(basics, Status.ILLEGAL_ADDRESS, "writes_to", np.uint64(0x10))
    assert "0x10" in error.text
    assert "writes_to" in error.text


def test_trap(basics: Module) -> None:
    expect_failure(basics, Status.TRAP, "trapping")


def test_assert_prints_what_cuda_prints(basics: Module) -> None:
    printed: list[str] = []
    expect_failure(basics, Status.ASSERT, "asserting", 63, on_print=printed.append)
    assert "basics.cu:" in printed[0]
    assert "thread: [63,0,0] Assertion `(int)threadIdx.x < limit` failed." in printed[0]


def test_watchdog_ends_an_endless_kernel(basics: Module) -> None:
    expect_failure(basics, Status.TIMEOUT, "endless", np.zeros(1, np.int32), timeout_ns=20_000_000)


def test_cancel_from_another_thread(basics: Module) -> None:
    cancel = ctypes.c_int(0)
    timer = threading.Timer(0.02, lambda: setattr(cancel, "value", 1))
    timer.start()
    expect_failure(basics, Status.CANCELLED, "endless", np.zeros(1, np.int32), cancel=cancel)
    timer.join()


def test_bottomless_recursion_overflows_the_stack(basics: Module) -> None:
    expect_failure(basics, Status.LAUNCH_FAILED, "recurses", np.zeros(1, np.int32))


def test_barrier_that_is_never_complete(basics: Module) -> None:
    error = expect_failure(basics, Status.LAUNCH_FAILED, "waits_alone")
    assert "deadlock" in error.text


def test_shared_memory_overrun(basics: Module) -> None:
    error = expect_failure(basics, Status.LAUNCH_FAILED, "shared_overrun", 1 << 20)
    assert "shared" in error.text


def test_launches_from_several_threads_at_once(basics: Module) -> None:
    n = 20_000
    a = np.arange(n, dtype=np.float32)
    outs = [np.zeros(n, np.float32) for _ in range(4)]

    def launch(out: np.ndarray) -> None:
        for _ in range(20):
            basics.launch("vector_add", (n + 127) // 128, 128, a, a, out, n)

    threads = [threading.Thread(target=launch, args=(out,)) for out in outs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for out in outs:
        np.testing.assert_array_equal(out, a + a)


# ---- images ----


@pytest.mark.parametrize("flags", [["--no-compress"], ["--compress-mode=speed"], ["--compress-mode=size"]], ids=str)
def test_fatbin_compressions(tmp_path: Path, flags: list[str]) -> None:
    image = compile_cuda(KERNELS / "basics.cu", tmp_path / "b.fatbin", kind="fatbin", flags=flags)
    out = np.zeros(64, np.int32)
    with Module(image) as module:
        module.launch("dynamic_shared", 1, 64, out, shared=256)
    assert out[0] == 189


def test_the_newest_ptx_that_the_device_can_run_is_chosen(tmp_path: Path) -> None:
    flags = [f"-gencode=arch=compute_{a},code=compute_{a}" for a in (75, 80, 90)]
    image = tmp_path / "many.fatbin"
    source = KERNELS / "link_b.cu"
    run_nvcc(["-fatbin", *flags, "-o", str(image), str(source)])
    for sm, chosen in ((75, 75), (89, 80), (120, 90)):
        with Module(image.read_bytes(), sm=sm):
            pass
        assert chosen <= sm
    with pytest.raises(EngineError) as caught:
        Module(image.read_bytes(), sm=70)
    assert caught.value.status == Status.NO_BINARY
    assert "compute_70" in caught.value.text


@pytest.mark.parametrize("flags", [["-G"], ["-lineinfo"], ["-use_fast_math"], ["-rdc=true"]], ids=str)
def test_compiler_modes(tmp_path: Path, flags: list[str]) -> None:
    out = np.zeros(256, np.int32)
    with Module(compile_cuda(KERNELS / "basics.cu", tmp_path / "b.ptx", arch="sm_80", flags=flags)) as module:
        module.launch("diverge", 1, 256, out)
    assert out[:8].tolist() == [0, 1, 7, 2, 5, 8, 16, 3 + 13]


def linked(parts: list[bytes], sm: int) -> Module:
    """The module that nvcc's wrapper of objects compiled with -rdc=true is."""
    objects = [ctypes.create_string_buffer(part) for part in parts]
    table = (ctypes.c_void_p * (len(parts) + 1))(*(ctypes.addressof(part) for part in objects), None)
    wrapper = (ctypes.c_uint64 * 3)(0x466243B1 | 2 << 32, ctypes.addressof(objects[0]), ctypes.addressof(table))
    return Module(ctypes.string_at(wrapper, 24), sm=sm)


def test_objects_compiled_apart_are_linked_and_keep_their_local_names(tmp_path: Path) -> None:
    flags = ["-rdc=true"]
    parts = [
        compile_cuda(KERNELS / f"link_{part}.cu", tmp_path / part, kind="fatbin", arch="sm_75", flags=flags)
        for part in "ab"
    ]
    newer = compile_cuda(KERNELS / "link_b.cu", tmp_path / "new", kind="fatbin", arch="sm_120", flags=flags)
    # An object that has nothing for this device is left out: the toolkit's own is one.
    for objects in (parts, [*parts, newer]):
        out = np.full(1, 5, np.int32)
        with linked(objects, 90) as module:
            module.launch("linked", 1, 1, out)
        assert out[0] == 5 * 2 + 7 + 100
    with pytest.raises(EngineError) as caught:
        linked([newer], 90)
    assert caught.value.status == Status.NO_BINARY


def in_own_process(script: str, *args: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script, *args],
        cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


STRICT = """
import sys
import numpy as np
from tests.softgpu.engine import EngineError, Module, configure
configure(strict=sys.argv[2] == "strict")
with Module(open(sys.argv[1]).read()) as module:
    out = np.zeros(64, np.uint8)
    try:
        module.launch("writes_to", 1, 1, np.uint64(out.ctypes.data // 8 * 8 + 9))
        print("ran")
    except EngineError as error:
        print(error.status.name)
"""


def test_strict_mode_finds_misaligned_accesses(tmp_path: Path) -> None:
    ptx = tmp_path / "b.ptx"
    compile_cuda(KERNELS / "basics.cu", ptx)
    assert in_own_process(STRICT, str(ptx), "strict") == "MISALIGNED\n"
    assert in_own_process(STRICT, str(ptx), "lenient") == "ran\n"


LEVEL = """
import hashlib, sys
import numpy as np
from tests.softgpu.engine import Module
with Module(open(sys.argv[1]).read()) as module:
    digest = hashlib.sha256()
    n = 64
    a, b = np.random.default_rng(9).random((2, n, n)).astype(np.float32)
    c = np.zeros((n, n), np.float32)
    module.launch("matmul", (n // 16, n // 16), (16, 16), a, b, c, n)
    out = np.zeros(1024, np.int32)
    module.launch("diverge", 4, 256, out)
    switched = np.zeros(200, np.int32)
    module.launch("switches", 1, 200, np.arange(200, dtype=np.int32), switched)
    for array in (c, out, switched):
        digest.update(array.tobytes())
    print(digest.hexdigest())
"""


def test_all_instruction_set_levels_agree(tmp_path: Path) -> None:
    ptx = tmp_path / "b.ptx"
    compile_cuda(KERNELS / "basics.cu", ptx)
    digests = {in_own_process(LEVEL, str(ptx), FARBUS_SOFTGPU_ISA=level) for level in ("v2", "v3", "v4")}
    assert len(digests) == 1


def test_every_form_has_one_spelling_of_its_own() -> None:
    names = form_names()
    assert len(names) == len(set(names))
    assert {"add.u32", "fma.f32", "setp.lt.s32", "shfl.up.b32", "cvt.s32.f32", "@matrix.multiply"} <= set(names)
