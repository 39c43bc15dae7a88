"""Real programs through shim, TCP, server and software GPU."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.remoting.harness import BUILD, PROGRAMS, ROOT, SANITIZED, SANITIZER, SHIM, Remote, remote_session
from tests.verbs import fake
from tests.verbs.door import FakeDoor, build_door
from tests.verbs.peer import gid_of


@pytest.fixture(autouse=True)
def _nothing_found() -> Iterator[None]:
    """Fail the test in whose processes a sanitizer found something (make asan, make tsan)."""
    yield
    reports = [*Path(SANITIZED, "reports").glob("report.*")] if SANITIZED else []
    found = "".join(report.read_text(errors="replace") for report in reports)
    for report in reports:
        report.unlink()
    assert not found, found


def require(path: Path, hint: str) -> Path:
    if not path.exists():
        pytest.skip(f"{path.relative_to(ROOT)} is not built: {hint}")
    return path


@pytest.fixture(scope="session")
def libcuda() -> Path:
    """The driver that the servers open: NVIDIA's when FARBUS_TEST_LIBCUDA names it, else the software GPU."""
    named = os.environ.get("FARBUS_TEST_LIBCUDA")
    return Path(named) if named else require(BUILD / "softgpu" / "libcuda.so.1", "run make -C native")


@pytest.fixture(scope="session")
def shared_library(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Compile NAME.c of this folder to a shared library, linked to what else is named."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("cc is not in PATH")
    folder = tmp_path_factory.mktemp("libraries")

    @functools.cache
    def compile_library(name: str, *linked: str | Path) -> Path:
        library = folder / f"lib{name}.so"
        source = ROOT / "tests" / "remoting" / f"{name}.c"
        flags = ("-shared", "-fPIC", "-Wall", "-Werror", "-Wl,--no-as-needed")
        subprocess.run([compiler, *flags, "-o", library, source, *linked], check=True)
        return library

    return compile_library


@pytest.fixture(scope="session")
def driver_before(libcuda: Path, shared_library: Callable[..., Path]) -> Callable[[str], Path]:
    """Compile NAME.c of this folder to a driver of its own: what that does not define is the other's."""
    return lambda name: shared_library(name, libcuda, f"-Wl,-rpath,{libcuda.parent}", "-ldl")


@pytest.fixture(scope="session")
def build() -> Callable[[str], Path]:
    """Compile tests/programs/NAME.cu with nvcc, default flags and what its ``// flags:`` line adds."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("nvcc is not in PATH")

    def compile_program(name: str) -> Path:
        source = PROGRAMS / f"{name}.cu"
        target = BUILD / "programs" / name
        newest = max(path.stat().st_mtime for path in [source, *PROGRAMS.glob("**/*.h")])
        if target.exists() and target.stat().st_mtime > newest:
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        found = re.search(r"^// flags: (.*)$", source.read_text(), re.MULTILINE)
        flags = found[1].split() if found else []
        fresh = target.with_suffix(f".{os.getpid()}")
        subprocess.run([nvcc, "-fmad=false", *flags, "-o", fresh, source, "-ldl"], check=True, capture_output=True)
        fresh.replace(target)
        return target

    return compile_program


@pytest.fixture
def lease(libcuda: Path, tmp_path: Path) -> Iterator[Callable[..., Remote]]:
    """Start supervisors, each with a session file; keywords but ``tls`` and ``rdma`` are the servers' environment."""
    require(SHIM / "libcuda.so.1", "run make -C native")
    pytest.importorskip("farbus.remoting._server", reason="run python native/ffi_build.py")
    with contextlib.ExitStack() as stack:

        def start(*, tls: bool = True, rdma: bool = False, **environment: str) -> Remote:
            return stack.enter_context(
                remote_session(libcuda=libcuda, folder=tmp_path, environment=environment, tls=tls, rdma=rdma)
            )

        yield start


@pytest.fixture
def remote(lease: Callable[..., Remote]) -> Remote:
    """A running supervisor with a session file for it."""
    return lease()


@pytest.fixture(scope="session")
def fake_verbs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the tests' own libibverbs.so.1, whose device has 127.0.0.1."""
    if fake.missing():
        pytest.skip(fake.missing())
    return fake.build_library(tmp_path_factory.mktemp("verbs")).parent


@pytest.fixture(scope="session")
def door_library(fake_verbs: Path) -> Path:
    return build_door(fake_verbs)


@pytest.fixture
def door(door_library: Path) -> Iterator[FakeDoor]:
    """How a peer in Python (tests/verbs/peer.py) gets at the tests' own device."""
    door = FakeDoor(door_library, gid_of("127.0.0.1"))
    yield door
    door.close()


@pytest.fixture
def rdma_lease(lease: Callable[..., Remote], fake_verbs: Path) -> Callable[..., Remote]:
    """A lease whose operators let sessions go by RDMA, and server and programs with the tests' own device."""

    def start(*, tls: bool = True, **environment: str) -> Remote:
        remote = lease(tls=tls, rdma=True, LD_LIBRARY_PATH=str(fake_verbs), **environment)
        remote.with_library_path(fake_verbs)
        return remote

    return start


@pytest.fixture
def with_processors(shared_library: Callable[..., Path], tmp_path: Path) -> Callable[[int], dict[str, str]]:
    """What has a process find so many processors."""
    library = shared_library("processors")

    def environment(count: int) -> dict[str, str]:
        preloaded = f"{SANITIZER}:{library}".lstrip(":")
        wanted = str(tmp_path / "wanted")
        return {
            "LD_PRELOAD": preloaded,
            "PROCESSORS": str(count),
            "PROCESSORS_IDLE": "1",
            "PROCESSORS_WANTED": wanted,
        }

    return environment


@pytest.fixture
def lease_with(lease: Callable[..., Remote], with_processors: Callable[[int], dict[str, str]]) -> Callable[..., Remote]:
    """A lease whose server and programs find so many processors."""

    def start(server: int, program: int, *, tls: bool = False) -> Remote:
        remote = lease(tls=tls, **with_processors(server))
        changes = with_processors(program)
        remote.always = changes | {"LD_PRELOAD": f"{remote.environment()['LD_PRELOAD']}:{changes['LD_PRELOAD']}"}
        return remote

    return start
