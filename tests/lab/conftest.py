"""What the lab's tests share: the image, a wheel of this tree, and when they run at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from farbus.cli.toolchain import find_toolchain
from farbus.errors import NotFound
from tests.lab.image import ensure_image, image_directory, image_is_there, missing_commands

ROOT = Path(__file__).parent.parent.parent
WHEEL_LIMIT_S = 600


def asked_for() -> bool:
    """Say whether this is ``make check-lab``."""
    return os.environ.get("FARBUS_LAB") == "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip by a mark, which the summary tells in one line of each file, and not in one of each test."""
    if asked_for():
        return
    mark = pytest.mark.skip(reason="boots virtual machines for minutes: run make check-lab (FARBUS_LAB=1)")
    for item in items:
        if "image" in getattr(item, "fixturenames", ()):
            item.add_marker(mark)


@pytest.fixture(scope="session")
def image() -> Path:
    """The image, made where it is missing."""
    return ensure_image()


@pytest.fixture(scope="session")
def made_image() -> Path:
    """The image where it has been made: a boot takes half a minute, what comes before it two."""
    if asked_for():
        return ensure_image()
    if missing := missing_commands():
        pytest.skip(f"needs {', '.join(missing)} for a virtual machine: run make check-lab")
    if not image_is_there():
        pytest.skip("needs the image of a virtual machine: run make check-lab, which makes it")
    return image_directory()


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with ``stay``, a CUDA program that works until a file is there, or empty where there is no nvcc.

    Guests have no compiler.
    """
    directory = tmp_path_factory.mktemp("programs")
    # Users of the guest read it.
    directory.chmod(0o755)
    with contextlib.suppress(NotFound):
        find_toolchain().compile(ROOT / "tests/programs/cluster/stay.cu", directory / "stay")
    return directory


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheel of this tree alone."""
    if not (ROOT / "native/build/softgpu/libcuda.so.1").exists():
        pytest.skip("the native parts are not built: run make build")
    place = tmp_path_factory.mktemp("wheel")
    # setuptools writes its own files beside the sources; what need not be compiled again goes along.
    left_out = shutil.ignore_patterns(
        ".git", ".venv", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis", "programs", "asan", "ffi", "tests"
    )
    shutil.copytree(ROOT, place / "tree", symlinks=True, ignore=left_out)
    shutil.rmtree(place / "tree" / "build", ignore_errors=True)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("FARBUS_", "PYTHON", "MAKE"))
    }
    command = [sys.executable, "-m", "build", "--no-isolation", "--skip-dependency-check", "--wheel"]
    done = subprocess.run(
        [*command, "--outdir", str(place / "dist"), str(place / "tree")],
        env=environment, capture_output=True, text=True, timeout=WHEEL_LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    shutil.rmtree(place / "tree")
    return place / "dist"
