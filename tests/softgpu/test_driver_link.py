"""cuLink takes what nvcc makes of two sources: objects, fatbins, PTX, and archives of objects."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.softgpu.driver_programs import HERE, TIMEOUT_S, build, environment

COMPILE_TIMEOUT_S = 180
COMPILE = {
    ".o": ["-dc"],
    ".fatbin": ["-fatbin", "-rdc=true"],
    ".ptx": ["-ptx", "-rdc=true"],
}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The file of that name, made of kernels/<stem>.cu."""
    nvcc = shutil.which("nvcc")
    if not nvcc:
        pytest.skip("no nvcc")
    folder = tmp_path_factory.mktemp("link")

    def make(name: str) -> Path:
        path = folder / name
        if path.suffix == ".a":
            subprocess.run(["ar", "rc", str(path), str(make(f"{path.stem}.o"))], check=True, timeout=TIMEOUT_S)
        elif not path.exists():
            source = HERE / "kernels" / f"{path.stem}.cu"
            target = ["-arch=compute_75"] if path.suffix == ".ptx" else ["-arch=compute_75", "-code=compute_75"]
            subprocess.run(
                [nvcc, *COMPILE[path.suffix], *target, "-o", str(path), str(source)],
                check=True,
                timeout=COMPILE_TIMEOUT_S,
            )
        return path

    return make


def link_and_run(folder: Path, *files: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(build("driver_link_files", folder)), *map(str, files)],
        env=environment(str(folder)),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@pytest.mark.timeout(300)  # nvcc
@pytest.mark.parametrize("names", [("link_a.o", "link_b.a"), ("link_a.ptx", "link_b.fatbin")], ids="+".join)
def test_files_of_nvcc_are_linked(names: tuple[str, ...], compiled: Callable[[str], Path], tmp_path: Path) -> None:
    done = link_and_run(tmp_path, *map(compiled, names))
    assert (done.returncode, done.stdout) == (0, f"{6 * 2 + 7 + 100}\n"), done.stderr


@pytest.mark.timeout(300)
def test_the_device_runtime_may_be_named(compiled: Callable[[str], Path], tmp_path: Path) -> None:
    """Build systems link libcudadevrt.a always; it has no code for this device that would be needed."""
    runtime = Path(shutil.which("nvcc") or "").resolve().parents[1] / "lib64" / "libcudadevrt.a"
    if not runtime.exists():
        runtime = Path("/usr/local/cuda/lib64/libcudadevrt.a")
    if not runtime.exists():
        pytest.skip("no libcudadevrt.a")
    done = link_and_run(tmp_path, compiled("link_a.o"), compiled("link_b.o"), runtime)
    assert (done.returncode, done.stdout) == (0, "119\n"), done.stderr
