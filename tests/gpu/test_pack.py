"""What goes into the archive for a machine with a GPU, and comes out of it there."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.gpu import check, pack
from tests.remoting.harness import ROOT

THIS = f"{sys.version_info.major}.{sys.version_info.minor}\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout where everything is built, and something that only its build needed."""
    root = tmp_path / "checkout"
    files = [*pack.BUILT, Path("native/build/softgpu/driver.o"), Path("native/build/programs/suite/graphs")]
    for path in files:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(str(path))
    return root


def test_nothing_that_pip_installs_brings_numpy() -> None:
    names = pack.requirements(tomllib.loads((ROOT / "pyproject.toml").read_text()))
    assert any(name.startswith("cffi>=") for name in names)
    assert any(name.startswith("pytest>=") for name in names)
    assert not [name for name in names if name.startswith(("numpy", "ortools", "mpmath", "networkx"))]


def test_what_is_packed_is_unpacked_newer_than_its_sources(checkout: Path, tmp_path: Path) -> None:
    made, there = tmp_path / "made", tmp_path / "there"
    made.mkdir()
    (made / "python").write_text(THIS)
    program = checkout / "native/build/programs/suite/graphs"
    program.chmod(0o755)
    os.utime(program, (1, 1))
    pack.write(tmp_path / "a.tar.xz", checkout, list(pack.built(checkout)), made)
    there.mkdir()
    source = there / "graphs.cu"
    source.touch()
    check.unpack(tmp_path / "a.tar.xz", there)
    unpacked = there / program.relative_to(checkout)
    assert unpacked.stat().st_mtime >= source.stat().st_mtime
    assert os.access(unpacked, os.X_OK)
    assert (there / "remoting/_server.abi3.so").read_text() == "remoting/_server.abi3.so"
    assert (there / pack.PLACE / "python").read_text() == THIS
    assert not (there / "native/build/softgpu/driver.o").exists()


def test_what_is_not_built_is_told(checkout: Path) -> None:
    (checkout / "remoting/_server.abi3.so").unlink()
    with pytest.raises(pack.Unpackable, match=r"^remoting/_server.abi3.so is not built: run make build$"):
        list(pack.built(checkout))


def test_a_tool_that_fails_is_told_in_one_line() -> None:
    with pytest.raises(pack.Unpackable, match=r"^packages: ERROR: no such package$"):
        pack.run("sh", "-c", "echo 'ERROR: no such package' >&2; exit 1", what="packages")


def test_the_environment_is_this_python_with_what_was_packed(tmp_path: Path) -> None:
    place = tmp_path / "build" / "gpu"
    (place / "site").mkdir(parents=True)
    (place / "site" / "packed.py").write_text("told = 'packed'\n")
    python = check.make_environment(place)
    asked = "import packed, pytest; print(packed.told)"
    done = subprocess.run([python, "-P", "-c", asked], env=check.clean(), capture_output=True, text=True, check=False)
    assert done.stdout == "packed\n", done.stderr


def test_another_python_is_told_before_anything_is_unpacked(checkout: Path, tmp_path: Path) -> None:
    made, there = tmp_path / "made", tmp_path / "there"
    for folder in (made, there):
        folder.mkdir()
    (made / "python").write_text("2.7\n")
    pack.write(tmp_path / "a.tar.xz", checkout, list(pack.built(checkout)), made)
    with pytest.raises(check.Failed, match=r"^the archive is for Python 2\.7, this is 3\.\d+: "):
        check.unpack(tmp_path / "a.tar.xz", there)
    assert not list(there.iterdir())
