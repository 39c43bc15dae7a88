"""GPU code travels once, only what fits, and what the driver says of it is what it says of the whole."""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.remoting.harness import BUILD, SHIM, Remote, remote_session
from tests.remoting.test_failures import wait_until
from tests.remoting.test_reserve import reserved

#: What a program asks for by its digest before it sends it, and more.
LARGE = 200_000

#: Load images, launch ``store`` of each, and print a row for each: what loading gave, then what the kernel stored, the
#: virtual and real architecture that it was compiled for.
LOADER = """
import ctypes, json, sys
driver = ctypes.CDLL("libcuda.so.1")
def check(result):
    assert result == 0, result
check(driver.cuInit(0))
context, word, module, function = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_void_p(), ctypes.c_void_p()
check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
check(driver.cuCtxSetCurrent(context))
check(driver.cuMemAlloc_v2(ctypes.byref(word), ctypes.c_size_t(4)))
def load_whole(data):
    return driver.cuModuleLoadData(ctypes.byref(module), data + bytes(16))
def load_linked(data):
    link, image, size = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
    check(driver.cuLinkCreate_v2(0, None, None, ctypes.byref(link)))
    fat_binary = 2
    result = driver.cuLinkAddData_v2(link, fat_binary, data, ctypes.c_size_t(len(data)), b"input", 0, None, None)
    if not result:
        result = driver.cuLinkComplete(link, ctypes.byref(image), ctypes.byref(size))
    if not result:
        result = driver.cuModuleLoadData(ctypes.byref(module), image)
    check(driver.cuLinkDestroy(link))
    return result
load = {"whole": load_whole, "linked": load_linked}[sys.argv[1]]
rows = []
for path in sys.argv[2:]:
    result = load(open(path, "rb").read())
    if not result:
        result = driver.cuModuleGetFunction(ctypes.byref(function), module, b"store")
    if result:
        rows.append([result])
        continue
    parameters = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(word), ctypes.c_void_p))
    check(driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, parameters, None))
    value, virtual, real = ctypes.c_uint(), ctypes.c_int(), ctypes.c_int()
    check(driver.cuMemcpyDtoH_v2(ctypes.byref(value), word, ctypes.c_size_t(4)))
    check(driver.cuFuncGetAttribute(ctypes.byref(virtual), 5, function))
    check(driver.cuFuncGetAttribute(ctypes.byref(real), 6, function))
    rows.append([0, value.value, virtual.value, real.value])
print(json.dumps(rows))
"""


#: What is said of an image that a driver does not take, or that is not sent to it.
REFUSED = re.compile(
    r"farbus: the kernel image of \d+ bytes in memory can't (run on|be loaded by the driver of) "
    r"|farbus: a kernel image is not loaded: "
)


def ptx(value: int, size: int) -> bytes:
    """PTX of at least ``size`` bytes whose kernel stores ``value``; the bulk comes last."""
    text = f"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry store(.param .u64 to)
{{
.reg .b64 %rd<2>;
ld.param.u64 %rd1, [to];
st.global.u32 [%rd1], {value};
ret;
}}
"""
    return text.encode() + b"//" + b"x" * size + b"\n"


def loaded(remote: Remote, *paths: Path, how: str = "whole") -> list[list[int]]:
    done = remote.run(sys.executable, "-c", LOADER, how, *paths, FARBUS_TRANSPORT="tcp")
    # An image that is refused is named.
    others = [line for line in done.stderr.splitlines() if not REFUSED.match(line)]
    assert (done.returncode, others) == (0, []), done.stderr
    rows: list[list[int]] = json.loads(done.stdout)
    return rows


def values(remote: Remote, *paths: Path) -> list[int]:
    return [row[1] for row in loaded(remote, *paths)]


class Node:
    """A node that keeps images: each lease finds those of the leases before it."""

    def __init__(self, libcuda: Path, folder: Path) -> None:
        self._libcuda = libcuda
        self._folder = folder
        self.directory = folder / "images"
        self.directory.mkdir(mode=0o700)

    def values(self, *paths: Path, image_bytes: int = 1 << 30) -> tuple[list[int], int]:
        """What the kernels store, and how many bytes the program has sent."""
        with self.lease(image_bytes) as remote:
            stored = values(remote, *paths)
            wait_until(lambda: remote.supervisor.sessions.ended.sessions == 1, "the session has ended")
            return stored, remote.supervisor.sessions.ended.received_bytes

    def lease(self, image_bytes: int = 1 << 30) -> AbstractContextManager[Remote]:
        return remote_session(
            libcuda=self._libcuda,
            folder=self._folder,
            environment={},
            image_directory=self.directory,
            image_bytes=image_bytes,
        )

    def kept(self) -> set[str]:
        return {path.name for path in self.directory.iterdir()}


@pytest.fixture
def node(libcuda: Path, tmp_path: Path) -> Node:
    if not (SHIM / "libcuda.so.1").exists():
        pytest.skip("native/build/shim is not built: run make -C native")
    pytest.importorskip("farbus.remoting._server", reason="run python native/ffi_build.py")
    if " sha_ni " not in Path("/proc/cpuinfo").read_text().replace("\n", " \n"):
        pytest.skip("this processor has no instructions for SHA-256: images are not kept")
    return Node(libcuda, tmp_path)


@pytest.fixture
def image(tmp_path: Path) -> Callable[..., Path]:
    def write(value: int, size: int = LARGE) -> Path:
        path = tmp_path / f"{value}.ptx"
        path.write_bytes(ptx(value, size))
        return path

    return write


def test_an_image_travels_once(node: Node, image: Callable[..., Path]) -> None:
    stored, first = node.values(image(5))
    assert stored == [5]
    assert first > LARGE
    stored, second = node.values(image(5))
    assert stored == [5]
    assert second < first - LARGE + 1000


def test_a_small_image_is_sent_without_asking_and_not_kept(node: Node, image: Callable[..., Path]) -> None:
    assert node.values(image(6, 100))[0] == [6]
    assert node.kept() == set()


def test_what_is_kept_has_the_name_of_its_content(node: Node, image: Callable[..., Path]) -> None:
    node.values(image(5), image(7))
    names = node.kept()
    assert len(names) == 2
    assert names == {hashlib.sha256((node.directory / name).read_bytes()).hexdigest() for name in names}


def test_what_somebody_put_in_its_place_is_not_loaded(node: Node, image: Callable[..., Path]) -> None:
    node.values(image(5))
    (five,) = node.kept()
    node.values(image(7))
    (seven,) = node.kept() - {five}
    shutil.copyfile(node.directory / seven, node.directory / five)
    stored, sent = node.values(image(5))
    assert stored == [5]
    assert sent > LARGE
    assert node.values(image(5))[1] < LARGE


def test_a_damaged_or_cut_file_is_as_good_as_none(node: Node, image: Callable[..., Path]) -> None:
    node.values(image(5))
    (name,) = node.kept()
    whole = (node.directory / name).read_bytes()
    for damaged in (whole[:-1], whole[:-1] + b"?", b""):
        (node.directory / name).write_bytes(damaged)
        assert node.values(image(5))[0] == [5]
        assert (node.directory / name).read_bytes() == whole


def test_a_link_in_its_place_is_not_followed(node: Node, image: Callable[..., Path], tmp_path: Path) -> None:
    node.values(image(5))
    (name,) = node.kept()
    (node.directory / name).rename(tmp_path / "elsewhere")
    (node.directory / name).symlink_to(tmp_path / "elsewhere")
    assert node.values(image(5))[1] > LARGE


def test_a_directory_that_others_may_enter_is_not_used(node: Node, image: Callable[..., Path]) -> None:
    node.directory.chmod(0o755)
    assert node.values(image(5))[0] == [5]
    assert node.kept() == set()


def test_a_directory_that_is_not_there_is_done_without(node: Node, image: Callable[..., Path]) -> None:
    node.directory.rmdir()
    assert node.values(image(5))[0] == [5]


def test_without_room_nothing_is_kept_and_all_is_loaded(node: Node, image: Callable[..., Path]) -> None:
    with node.lease() as remote:
        resource.prlimit(reserved(remote), resource.RLIMIT_FSIZE, (LARGE // 2, LARGE // 2))
        assert values(remote, image(5)) == [5]
    assert node.kept() == set()


def test_what_was_not_used_for_longest_goes_first(node: Node, image: Callable[..., Path]) -> None:
    limit = 8 * (LARGE + 1000)
    paths = [image(value) for value in range(1, 8)]
    names = []
    for age, path in zip(range(100, 0, -10), paths, strict=False):
        node.values(path, image_bytes=limit)
        (fresh,) = node.kept() - set(names)
        names.append(fresh)
        used = node.directory.stat().st_mtime - age
        os.utime(node.directory / fresh, (used, used))
    node.values(paths[0], image_bytes=limit)  # used again
    node.values(image(9), image(10), image_bytes=limit)
    kept = node.kept()
    assert sum(path.stat().st_size for path in node.directory.iterdir()) <= limit
    assert names[0] in kept
    assert names[1] not in kept


def test_what_a_killed_server_left_half_written_is_removed(node: Node, image: Callable[..., Path]) -> None:
    old, fresh = node.directory / ".17.0", node.directory / ".18.0"
    old.write_bytes(b"half of")
    os.utime(old, (0, 0))
    fresh.write_bytes(b"somebody writes this")
    others = [node.directory / "notes.txt", node.directory / ".profile", node.directory / ("x" * 64)]
    for other in others:
        other.write_bytes(b"of somebody else")
        os.utime(other, (0, 0))
    node.values(image(5))
    assert not old.exists()
    assert fresh.exists()
    assert all(other.exists() for other in others)


# Only what fits.


SETS = {
    "every architecture": [
        "75,[sm_75,compute_75]",
        "80,sm_80",
        "86,sm_86",
        "90,sm_90",
        "100,sm_100",
        "120,[sm_120,compute_120]",
    ],
    "PTX of three": ["75,compute_75", "86,compute_86", "100,compute_100"],
    "PTX of one": ["75,compute_75"],
    "PTX for later devices": ["120,compute_120"],
    "no PTX": ["75,sm_75", "90,sm_90"],
    "a device's own": ["80,compute_80", "90a,[sm_90a,compute_90a]", "100f,[sm_100f,compute_100f]"],
}
#: Capabilities of the software GPU that loads them.
DEVICES = ("7.5", "8.6", "9.0", "10.3", "12.0")


@pytest.fixture(scope="module")
def fatbins(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Fat binaries of every set, compressed in each way; their kernels store __CUDA_ARCH__."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("nvcc is not in PATH")
    folder = tmp_path_factory.mktemp("fatbins")
    source = folder / "store.cu"
    source.write_text('extern "C" __global__ void store(unsigned *to) { *to = __CUDA_ARCH__; }\n')
    made = []
    for number, codes in enumerate(SETS.values()):
        for mode in ("none", "speed", "size"):
            target = folder / f"{number}-{mode}.fatbin"
            chosen = [f"-gencode=arch=compute_{code.partition(',')[0]},code={code.partition(',')[2]}" for code in codes]
            subprocess.run(
                [nvcc, "-fatbin", f"-compress-mode={mode}", *chosen, "-o", target, source],
                check=True,
                capture_output=True,
            )
            made.append(target)
    return made


@pytest.fixture(scope="module")
def broken(fatbins: list[Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """What is no image, or a damaged one that still says how long it is."""
    folder = tmp_path_factory.mktemp("broken")
    whole = fatbins[0].read_bytes()
    contents = {
        "empty container": whole[:8] + bytes(8),
        "text": b"this is no image at all",
        "no text": b"",
        "entry longer than its container": whole[:24] + b"\xff" * 8 + whole[32:],
        "entry header of nothing": whole[:20] + bytes(4) + whole[24:],
    }
    made = []
    for name, content in contents.items():
        path = folder / name.replace(" ", "-")
        path.write_bytes(content)
        made.append(path)
    return made


@pytest.mark.parametrize("how", ["whole", "linked"])
@pytest.mark.parametrize("capability", DEVICES)
def test_what_is_sent_gives_what_the_whole_gives(
    libcuda: Path, fatbins: list[Path], broken: list[Path], tmp_path: Path, capability: str, how: str
) -> None:
    if "FARBUS_TEST_LIBCUDA" in os.environ:
        pytest.skip("another device than the software GPU has the capability that it has")
    environment = {"FARBUS_SOFTGPU": f"cc={capability}", "FARBUS_SOFTGPU_NODE": str(tmp_path)}
    whole = subprocess.run(
        [sys.executable, "-c", LOADER, how, *fatbins, *broken],
        env=os.environ | environment | {"LD_LIBRARY_PATH": str(BUILD / "softgpu")},
        capture_output=True,
        text=True,
        check=True,
    )
    with remote_session(libcuda=libcuda, folder=tmp_path, environment=environment) as remote:
        assert loaded(remote, *fatbins, *broken, how=how) == json.loads(whole.stdout)


def test_a_program_for_many_devices_sends_little(node: Node, fatbins: list[Path]) -> None:
    whole = fatbins[0].stat().st_size
    _, sent = node.values(fatbins[0])
    _, nothing = node.values()
    assert sent - nothing < whole / 2
