"""What stands in for compilers whose machine code a software GPU can't run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.softgpu.engine import Module

ROOT = Path(__file__).resolve().parents[2]
COMPILERS = ROOT / "native" / "build" / "softgpu" / "compilers"

PTX = """
.version 8.7
.target sm_120a
.address_size 64
.visible .entry k(.param .u64 p)
{
  .reg .b32 %r<2>;
  .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [p];
  mov.b32 %r1, 42;
  st.global.b32 [%rd1], %r1;
  ret;
}
"""

#: Prints the "machine code" that comes of the options in argv, through the stand-in that is preloaded.
ASK = """
import ctypes, sys
nvrtc = ctypes.CDLL("libnvrtc.so.13")
options = [option.encode() for option in sys.argv[1:]]
assert nvrtc.nvrtcCompileProgram(None, len(options), (ctypes.c_char_p * len(options))(*options)) == 0
size = ctypes.c_size_t()
assert nvrtc.nvrtcGetCUBINSize(None, ctypes.byref(size)) == 0
code = ctypes.create_string_buffer(size.value + 1)
assert nvrtc.nvrtcGetCUBIN(None, code) == 0
print(size.value, code.value.decode())
"""


@pytest.fixture(scope="module")
def compilers() -> Path:
    if not COMPILERS.is_dir():
        pytest.skip("native/build/softgpu/compilers is not built: run make -C native")
    return COMPILERS


def test_ptxas_keeps_the_ptx_for_all_devices(compilers: Path, tmp_path: Path) -> None:
    source, result = tmp_path / "kernel.ptx", tmp_path / "kernel.cubin"
    source.write_text(PTX)
    subprocess.run([compilers / "ptxas", "-lineinfo", "-v", "--gpu-name=sm_120a", source, "-o", result], check=True)
    assert result.read_text() == PTX.replace("sm_120a", "sm_120") + "\0"
    # As text, PTX for one architecture alone is refused by the others: this runs on any newer one.
    with Module(result.read_text().rstrip("\0"), sm=130):
        pass


def test_ptxas_tells_a_version_as_nvidias_does(compilers: Path) -> None:
    told = subprocess.run([compilers / "ptxas", "--version"], check=True, capture_output=True, text=True).stdout
    assert "release 13.0" in told


def test_ptxas_tells_the_release_that_an_older_triton_knows(compilers: Path) -> None:
    environment = {**os.environ, "FARBUS_PTXAS_RELEASE": "12.8"}
    told = subprocess.run([compilers / "ptxas", "-V"], check=True, capture_output=True, text=True, env=environment)
    assert told.stdout == "Cuda compilation tools, release 12.8, V12.8.0\n"


def test_ptxas_without_an_input_fails(compilers: Path) -> None:
    assert subprocess.run([compilers / "ptxas", "-v"], check=False, capture_output=True).returncode == 1


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    library = tmp_path_factory.mktemp("nvrtc") / "libnvrtc-real.so"
    source = Path(__file__).with_name("fake_nvrtc.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    return library


def ask(compilers: Path, real: Path, *options: str) -> str:
    environment = os.environ | {"LD_PRELOAD": str(compilers / "libnvrtc.so.13"), "FARBUS_NVRTC": str(real)}
    done = subprocess.run(
        [sys.executable, "-c", ASK, *options], env=environment, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("options", "passed"),
    [
        (["--gpu-architecture=sm_90", "-std=c++17"], "--gpu-architecture=sm_90 -std=c++17"),
        (["--gpu-architecture=sm_130"], "--gpu-architecture=sm_90"),
        (["-arch=sm_130"], "-arch=sm_90"),
        (["-arch", "sm_130"], "-arch sm_90"),
        (["-arch=sm_70"], "-arch=sm_70"),
        (["-DNAME=sm_130"], "-DNAME=sm_130"),
    ],
)
def test_nvrtc_gives_ptx_for_an_architecture_that_it_knows(
    compilers: Path, real: Path, options: list[str], passed: str
) -> None:
    """The fake library's PTX is the options that reached it."""
    assert ask(compilers, real, *options) == f"{len(passed) + 2} {passed}"


def test_nvrtc_gives_no_cubin_for_a_virtual_architecture(compilers: Path, real: Path) -> None:
    assert ask(compilers, real, "-arch=compute_90") == "0"


def test_nvrtc_without_the_real_one_reports_an_error(compilers: Path, tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as raised:
        ask(compilers, tmp_path / "missing.so", "-arch=sm_90")
    assert "NVRTC not opened" in raised.value.stderr
