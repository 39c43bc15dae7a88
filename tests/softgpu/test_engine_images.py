"""Images that are refused, and why: nothing hostile may crash the engine or hang it."""

import ctypes
import random
import struct
import subprocess
import sys

import numpy as np
import pytest

from tests.softgpu.engine import ROOT, EngineError, Module, Status

HEADER = ".version 8.0\n.target sm_80\n.address_size 64\n"


def kernel(body: str, *, before: str = "") -> str:
    registers = ".reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p<4>;"
    return f"{HEADER}{before}\n.visible .entry k(.param .u64 p)\n{{\n{registers}\n{body}\n}}\n"


def refused(image: str | bytes, status: Status, *words: str, sm: int = 120) -> None:
    with pytest.raises(EngineError) as caught:
        Module(image, sm=sm)
    assert caught.value.status == status, caught.value
    for word in words:
        assert word in caught.value.text, caught.value


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (".version", ("expected a version",)),
        (".version nine", ("expected a version", "nine")),
        (kernel("nonsense;"), ("unknown instruction 'nonsense'",)),
        (kernel("@%p1 nonsense.u32 %r1, 7;"), ("unknown instruction 'nonsense.u32'",)),
        (kernel("add.u32 %r1, %r2"), ("';'",)),
        (kernel("bra nowhere;"), ("label nowhere",)),
        (kernel("mov.u32 %r1, %unknown_thing_;") + "}", ("module level",)),
        (HEADER + ".global .align 3 .u32 x;", ("alignment 3",)),
        (HEADER + ".global .u32 x[2] = {1, 2, 3};", ("too many initializers",)),
        (HEADER + ".global .u8 x[4294967296][4294967296];", ("too large",)),
        (kernel("ret;")[:-3], ("ends inside",)),
        (HEADER + ".visible .entry k(.param .b8 p[99999999]) { ret; }", ("too large",)),
        (kernel("@%r1 bra L; L:"), ("predicate",)),
    ],
    ids=range(13),
)
def test_malformed_ptx_is_refused_with_a_reason(image: str, words: tuple[str, ...]) -> None:
    refused(image, Status.INVALID_PTX, *words)


def test_a_long_name_leaves_room_for_the_reason() -> None:
    name = "k" * 2000
    refused(kernel("nonsense;").replace("entry k", f"entry {name}"), Status.INVALID_PTX, "unknown instruction", "kkk")


@pytest.mark.parametrize("image", ["", "hello", "9.0"])
def test_text_that_is_no_ptx_is_no_image(image: str) -> None:
    refused(image, Status.INVALID_IMAGE, "start with .version")


@pytest.mark.parametrize("version", ["10.0", "99.0"])
def test_ptx_of_a_later_major_version_is_refused(version: str) -> None:
    text = HEADER.replace("8.0", version)
    refused(text, Status.UNSUPPORTED_VERSION, f".version {version}", "9.x")


def test_an_instruction_of_a_later_minor_version_disables_only_its_function() -> None:
    text = kernel("nonsense;").replace(".version 8.0", ".version 9.9")
    with Module(text) as module:
        info = module.info("k")
        assert info.status == Status.UNSUPPORTED
        assert b"nonsense" in info.unsupported


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (".reg .b64 %q<2000000>;", b"2000000 registers"),
        (".reg .b64 %q<1000000>; .reg .b64 %s<1000000>;", b"registers of more than"),
        ("{" * 300 + "}" * 300, b"nested"),
    ],
)
def test_a_function_too_large_for_the_engine_disables_only_itself(body: str, why: bytes) -> None:
    other = (
        "\n.visible .entry other(.param .u64 p) { .reg .b64 %rd<2>; ld.param.u64 %rd1, [p]; st.u32 [%rd1], 7; ret; }\n"
    )
    out = np.zeros(1, np.uint32)
    with Module(kernel(body) + other) as module:
        assert module.info("k").status == Status.UNSUPPORTED
        assert why in module.info("k").unsupported
        module.launch("other", 1, 1, out)
    assert out[0] == 7


def test_as_many_registers_as_a_whole_hash_has() -> None:
    """The last of 310,711: cudf's SHA-256, each step of it written out."""
    body = """
    .reg .b32 %h<310711>;
    mov.u32 %h310710, %tid.x;
    add.u32 %h0, %h310710, 1;
    ld.param.u64 %rd1, [p];
    mul.wide.u32 %rd2, %h310710, 4;
    add.u64 %rd1, %rd1, %rd2;
    st.global.u32 [%rd1], %h0;
    ret;"""
    out = np.zeros(64, np.uint32)
    with Module(kernel(body)) as module:
        module.launch("k", 1, 64, out)
    assert (out == np.arange(1, 65)).all()


def test_the_predefined_constant_is_the_size_of_a_warp() -> None:
    text = kernel("ld.param.u64 %rd1, [p]; mov.u32 %r1, WARP_SZ; st.global.u32 [%rd1], %r1; ret;")
    out = np.zeros(1, np.uint32)
    with Module(text) as module:
        module.launch("k", 1, 1, out)
    assert out[0] == 32


def test_unresolved_symbols_are_named() -> None:
    refused(kernel("call.uni there, ();", before=".extern .func there();"), Status.UNRESOLVED, "there")
    refused(kernel("ld.global.u32 %r1, [x];", before=".extern .global .u32 x;"), Status.UNRESOLVED, "x")


@pytest.mark.parametrize(
    "callee",
    ["cudaLaunchDeviceV2", "__cudaCDP2LaunchDeviceV2", "cnpLaunchDevice", "__cuda_syscall_cnpv2LaunchDeviceV2"],
)
def test_a_launch_by_a_kernel_disables_only_that_kernel(callee: str) -> None:
    with Module(kernel(f"call.uni {callee}, ();", before=f".extern .func {callee}();")) as module:
        info = module.info("k")
        assert info.status == Status.UNSUPPORTED
        assert callee.encode() in info.unsupported


SET_CONDITION = ".extern .func cudaGraphSetConditional (.param .b64 handle, .param .b32 value)"


@pytest.mark.parametrize("end", [";", ""], ids=["semicolon", "none"])
def test_an_external_function_may_lack_its_semicolon(end: str) -> None:
    text = kernel("ld.param.u64 %rd1, [p]; st.global.u32 [%rd1], 7; ret;", before=SET_CONDITION + end)
    out = np.zeros(1, np.uint32)
    with Module(text) as module:
        module.launch("k", 1, 1, out)
    assert out[0] == 7


def test_a_kernel_that_sets_what_is_no_condition_fails() -> None:
    body = """ld.param.u64 %rd1, [p];
    { .param .b64 a; .param .b32 b; st.param.b64 [a], %rd1; st.param.b32 [b], 1;
    call.uni cudaGraphSetConditional, (a, b); } ret;"""
    with Module(kernel(body, before=SET_CONDITION + ";")) as module, pytest.raises(EngineError) as caught:
        module.launch("k", 1, 1, np.zeros(1))
    assert caught.value.status == Status.LAUNCH_FAILED
    assert "cudaGraphSetConditional of 0x" in caught.value.text


def test_cubin_alone_is_no_binary() -> None:
    refused(b"\x7fELF" + bytes(64), Status.NO_BINARY, "PTX")


def test_a_missing_instruction_disables_only_its_function() -> None:
    text = HEADER + (
        ".visible .entry good(.param .u64 p)\n"
        "{ .reg .b64 %rd<3>; ld.param.u64 %rd1, [p]; st.global.u32 [%rd1], 7; ret; }\n"
        ".visible .entry bad() { .reg .b32 %r<3>; tcgen05.fence::after_thread_sync; ret; }\n"
    )
    out = np.zeros(1, np.uint32)
    with Module(text) as module:
        module.launch("good", 1, 1, out)
        assert out[0] == 7
        info = module.info("bad")
        assert info.status == Status.UNSUPPORTED
        assert b"tcgen05.fence" in info.unsupported
        with pytest.raises(EngineError) as caught:
            module.launch("bad", 1, 1)
        assert caught.value.status == Status.UNSUPPORTED


@pytest.mark.parametrize(
    ("target", "sm"), [("sm_90", 80), ("sm_90a", 100), ("sm_100f", 120), ("sm_100f", 90), ("sm_103f", 100)]
)
def test_ptx_for_another_device_is_refused(target: str, sm: int) -> None:
    text = kernel("ret;").replace("sm_80", target)
    refused(text, Status.INVALID_PTX, f".target {target}", f"-arch=compute_{sm}", sm=sm)


@pytest.mark.parametrize(("target", "sm"), [("sm_80", 80), ("sm_80", 121), ("sm_90a", 90), ("sm_100f", 103)])
def test_ptx_for_this_device_is_taken(target: str, sm: int) -> None:
    with Module(kernel("ret;").replace("sm_80", target), sm=sm) as module:
        assert module.function_names() == ["k"]


def container(payload: bytes) -> bytes:
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(payload)) + payload


def entry(
    text: bytes,
    *,
    arch: int = 80,
    flags: int = 0,
    compressed: int = 0,
    uncompressed: int = 0,
    options_offset: int = 0,
) -> bytes:
    return struct.pack(
        "<HHIQIIHHIIIQQQ", 1, 0, 64, len(text), compressed, options_offset, 0, 8, arch, 0, 0, flags, 0, uncompressed
    ) + text  # fmt: skip


def test_raw_ptx_in_a_container() -> None:
    text = kernel("ret;").encode() + b"\0"
    with Module(container(entry(text))) as module:
        assert module.function_names() == ["k"]


@pytest.mark.parametrize(("flags", "sm"), [(0x100000, 91), (0x200000, 100)], ids=["compute_90a", "compute_90f"])
def test_ptx_of_a_container_for_one_device_or_family_is_passed_over_elsewhere(flags: int, sm: int) -> None:
    common, special = (kernel("ret;").replace(" k(", f" {name}(").encode() + b"\0" for name in ("common", "special"))
    image = container(entry(common) + entry(special, arch=90, flags=flags))
    with Module(image, sm=sm) as module:
        assert module.function_names() == ["common"]
    with Module(image, sm=90) as module:
        assert module.function_names() == ["special"]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_of_one_age_the_code_for_this_device_alone_is_best(order: tuple[int, ...]) -> None:
    """compute_90a before compute_90f, and that before compute_90, wherever they stand."""
    names = ("common", "family", "alone")
    entries = [
        entry(kernel("ret;").replace(" k(", f" {name}(").encode() + b"\0", arch=90, flags=flags)
        for name, flags in zip(names, (0, 0x200000, 0x100000), strict=True)
    ]
    with Module(container(b"".join(entries[k] for k in order)), sm=90) as module:
        assert module.function_names() == ["alone"]


def test_code_for_other_devices_is_listed_as_far_as_the_line_goes() -> None:
    image = container(b"".join(entry(b"code", arch=121 + number) for number in range(60)))
    with pytest.raises(
        EngineError, match=r"but (PTX for compute_1\d\d, )+PTX for compute_1\d\d and more; compile with"
    ):
        Module(image, sm=90)


@pytest.mark.parametrize(("flags", "told"), [(0, True), (0x100000, False), (0x200000, False)])
def test_for_newer_code_a_newer_software_gpu_is_named_unless_it_is_for_one_device_or_family(
    flags: int, told: bool
) -> None:
    with pytest.raises(EngineError) as refused:
        Module(container(entry(b"code", arch=120, flags=flags)), sm=90)
    assert str(refused.value).endswith("a software GPU with cc=13.0 runs its newer PTX (docs/softgpu.md)") is told


def many_registers(bounds: str) -> str:
    return kernel(".reg .b64 %q<1000>;" + "".join(f"mov.b64 %q{k}, {k};" for k in range(1000)) + "ret;").replace(
        ")\n{", f")\n{bounds}\n{{", 1
    )


@pytest.mark.parametrize(
    ("bounds", "registers"),
    [
        ("", 64),
        (".maxntid 384, 1, 1", 168),
        (".maxntid 128 .minnctapersm 8", 64),
        (".maxntid 32", 255),
        (".maxnreg 24", 24),
        (".maxnreg 8", 24),
        (".minnctapersm 4", 64),
        (".maxntid 32 .maxnreg 300", 255),
    ],
)
def test_the_guess_of_registers_leaves_room_for_the_largest_block(bounds: str, registers: int) -> None:
    with Module(many_registers(bounds)) as module:
        assert module.info("k").registers == registers


@pytest.mark.parametrize(
    ("options", "bounds", "registers"),
    [
        (b"", "", 64),
        (b" -maxrregcount=32 ", "", 32),
        (b"-O1  -maxrregcount=32 --generate-line-info ", "", 32),
        (b"-func-maxrregcount=32", "", 64),
        (b" --maxrregcount=8 ", "", 24),
        (b" -maxrregcount=archmax ", "", 64),
        (b" -maxrregcount=32 ", ".maxntid 384", 168),
        (b" -maxrregcount=32 ", ".maxnreg 48", 48),
    ],
)
def test_what_nvcc_tells_ptxas_of_registers_is_read(options: bytes, bounds: str, registers: int) -> None:
    """`nvcc -maxrregcount` leaves it to the driver where PTX is all it makes."""
    text = many_registers(bounds).encode() + b"\0"
    header = bytearray(entry(b"", options_offset=64) + struct.pack("<II", 72, len(options)) + options)
    header[4:16] = struct.pack("<IQ", len(header), len(text))
    with Module(container(bytes(header) + text)) as module:
        assert module.info("k").registers == registers


@pytest.mark.parametrize("place", [(64, 72, 1 << 31), (64, 1 << 31, 8), (1 << 31, 72, 8), (69, 72, 8)])
def test_options_that_lie_outside_of_their_header_are_none(place: tuple[int, int, int]) -> None:
    text = many_registers("").encode() + b"\0"
    header = bytearray(entry(b"", options_offset=place[0]) + struct.pack("<II", *place[1:]))
    header[4:16] = struct.pack("<IQ", len(header), len(text))
    with Module(container(bytes(header) + text)) as module:
        assert module.info("k").registers == 64


def test_an_empty_container_is_an_empty_module() -> None:
    with Module(container(b"")) as module:
        assert module.function_names() == []


@pytest.mark.parametrize("flags", [0x8000, 0x2000])
def test_damaged_compression_is_refused(flags: int) -> None:
    image = container(entry(b"garbage!" * 8, flags=flags, compressed=60, uncompressed=1000))
    refused(image, Status.INVALID_IMAGE, "damaged")


def test_entries_that_reach_beyond_the_container_are_refused() -> None:
    broken = bytearray(container(entry(b"text")))
    broken[16 + 8 : 16 + 16] = struct.pack("<Q", 1 << 60)
    refused(bytes(broken), Status.INVALID_IMAGE, "damaged")


def test_mutated_ptx_never_crashes_the_loader() -> None:
    """Cut, repeat and swap pieces of a valid text; whatever loads also runs within its limits."""
    text = kernel(
        "mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 3; @%p1 bra L1; add.u32 %r2, %r1, 5; { .reg .b32 t; mov.u32 t, 4; }"
        " L1: shfl.sync.up.b32 %r3|%p2, %r1, 1, 0, -1; bar.sync 0; ld.param.u64 %rd1, [p]; mul.wide.u32 %rd2, %r1, 4;"
        " add.u64 %rd1, %rd1, %rd2; atom.global.add.u32 %r4, [%rd1], 1; cvt.rn.f32.u32 %r5, %r4; ret;"
    )
    words = text.split(" ")
    rng = random.Random(11)
    loaded = 0
    out = np.zeros(4096, np.uint32)
    for _ in range(1500):
        mutant = list(words)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(mutant))
            action = rng.randrange(4)
            if action == 0:
                del mutant[at]
            elif action == 1:
                mutant.insert(at, rng.choice(words))
            elif action == 2:
                mutant[at] = rng.choice(words)
            else:
                mutant[at] = mutant[at][: rng.randint(0, len(mutant[at]))]
        try:
            module = Module(" ".join(mutant))
        except EngineError:
            continue
        with module:
            loaded += 1
            try:
                if module.function_names() == ["k"] and module.info("k").param_count == 1:
                    module.launch("k", 2, 40, out, timeout_ns=50_000_000)
            except EngineError:
                pass
    assert loaded > 10


def test_a_fault_passes_to_the_programs_own_handler_outside_of_launches() -> None:
    """The engine's SIGSEGV handler stands in front of the program's and calls it."""
    script = """
import ctypes, faulthandler, sys
faulthandler.enable()
from tests.softgpu.engine import Module
import numpy as np
m = Module(sys.argv[1]); m.launch("k", 1, 1, np.zeros(1))
ctypes.string_at(16)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, kernel("ret;")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == -11
    assert "Segmentation fault" in done.stderr


def test_cancel_flag_set_before_the_launch_stops_it() -> None:
    with Module(kernel("L: bra L;")) as module, pytest.raises(EngineError) as caught:
        module.launch("k", 1, 32, np.zeros(1), cancel=ctypes.c_int(1))
    assert caught.value.status == Status.CANCELLED


def test_module_variables() -> None:
    text = HEADER + ".visible .global .align 8 .u64 two[2] = {5, two};\n.visible .const .f32 half = 0f3F000000;\n"
    with Module(text) as module:
        two, half = module.variable("two"), module.variable("half")
        values = (ctypes.c_uint64 * 2).from_address(two.address)
        assert list(values) == [5, two.address]
        assert ctypes.c_float.from_address(half.address).value == 0.5
        assert (half.is_const, two.is_const, two.size) == (True, False, 16)


def test_clusters_that_are_too_large_are_refused() -> None:
    text = HEADER + ".visible .entry k() .reqnctapercluster 32, 1, 1 { ret; }"
    with Module(text) as module, pytest.raises(EngineError) as caught:
        module.launch("k", 32, 32)
    assert caught.value.status == Status.LAUNCH_FAILED
    assert "clusters of 32 x 1 x 1" in caught.value.text


FREE = """.extern .func free (.param .b64 p0);
.extern .func (.param .b64 r) malloc (.param .b64 p0);"""


@pytest.mark.parametrize("memory", ["mov.b64 %rd1, 4096;", "ld.param.u64 %rd1, [p];", "mov.b64 %rd1, -1;"])
def test_free_of_a_bad_pointer_fails_the_kernel(memory: str) -> None:
    body = f"{memory} {{ .param .b64 a; st.param.b64 [a], %rd1; call.uni free, (a); }} ret;"
    with Module(kernel(body, before=FREE)) as module, pytest.raises(EngineError) as caught:
        module.launch("k", 1, 1, np.zeros(64))
    assert caught.value.status == Status.LAUNCH_FAILED
    assert "free of 0x" in caught.value.text


def test_memory_is_freed_once() -> None:
    body = """{ .param .b64 n; .param .b64 r; st.param.b64 [n], 64; call.uni (r), malloc, (n); ld.param.b64 %rd1, [r]; }
    { .param .b64 a; st.param.b64 [a], %rd1; call.uni free, (a); }
    ld.param.u64 %rd2, [p]; ld.global.u32 %r1, [%rd2]; setp.eq.u32 %p1, %r1, 0; @%p1 ret;
    { .param .b64 a; st.param.b64 [a], %rd1; call.uni free, (a); } ret;"""
    with Module(kernel(body, before=FREE)) as module:
        module.launch("k", 1, 32, np.zeros(1, np.uint32))
        with pytest.raises(EngineError) as caught:
            module.launch("k", 1, 32, np.ones(1, np.uint32))
    assert caught.value.status == Status.LAUNCH_FAILED
