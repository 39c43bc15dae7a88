"""The wheel and the source distribution: what is in them, and that what is installed from them works."""

from __future__ import annotations

import json
import os
import re
import shutil
import site
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from farbus.remoting import paths

ROOT = Path(__file__).parent.parent
BUILT = ROOT / "native" / "build"

#: No network: every tool is in the environment that runs the tests.
BUILD = [sys.executable, "-m", "build", "--no-isolation", "--skip-dependency-check"]

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path, **changes: str) -> str:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("FARBUS_", "PYTHON", "LD_", "MAKE"))
    }
    done = subprocess.run(command, cwd=cwd, env=environment | changes, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command[0]} ends with {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unpacked source distribution of this tree."""
    if not (BUILT / "softgpu" / "libcuda.so.1").exists():
        pytest.skip("the native parts are not built: run make build")
    place = tmp_path_factory.mktemp("source")
    # Made from a copy: setuptools writes its own files beside the sources.
    tree = place / "tree"
    left_out = shutil.ignore_patterns(".git", ".venv", "build", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis")
    shutil.copytree(ROOT, tree, symlinks=True, ignore=left_out)
    run(*BUILD, "--sdist", "--outdir", place / "dist", cwd=tree)
    (archive,) = (place / "dist").iterdir()
    (place / "unpacked").mkdir()
    run("tar", "-xf", archive, cwd=place / "unpacked")
    (unpacked,) = (place / "unpacked").iterdir()
    return unpacked


@pytest.fixture(scope="module")
def wheel(source: Path) -> Path:
    """A wheel made from the source distribution, by make over the objects of this tree."""
    shutil.copytree(BUILT, source / "native" / "build", ignore=shutil.ignore_patterns("programs", "asan", "ffi"))
    run(*BUILD, "--wheel", "--outdir", source.parent / "wheel", cwd=source)
    (made,) = (source.parent / "wheel").iterdir()
    return made


def make_environment(place: Path, wheel: Path) -> tuple[Path, Path]:
    """Make an environment with the wheel alone; return its python and its packages' directory."""
    venv.create(place / "venv", symlinks=True)
    python = place / "venv" / "bin" / "python"
    packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=place).strip())
    installer = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"]
    run(*installer, wheel, cwd=place)
    return python, packages


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The python of an environment with the wheel, and with Farbus's dependencies by a path file."""
    python, packages = make_environment(tmp_path_factory.mktemp("installed"), wheel)
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    return python


def test_source_distribution_is_the_repository(source: Path) -> None:
    try:
        listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs a git checkout to know which files belong to the repository")
    tracked = {os.fsdecode(name) for name in listing.stdout.split(b"\0") if name}
    # A file may be deleted and not committed.
    missing = [name for name in sorted(tracked) if (ROOT / name).exists() and not (source / name).exists()]
    assert not missing
    assert {name: os.readlink(source / name) for name in tracked if (ROOT / name).is_symlink()} == {
        name: os.readlink(ROOT / name) for name in tracked if (ROOT / name).is_symlink()
    }


def test_wheel_serves_every_python_and_nothing_but_farbus_is_in_it(wheel: Path) -> None:
    assert re.fullmatch(r"farbus-[\d.]+-cp311-abi3-linux_\w+\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as packed:
        names = set(packed.namelist())
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"farbus"}
    assert {name.split("/")[1] for name in names if ".data/" in name} <= {"data"}


@pytest.mark.parametrize(
    "name",
    [
        "farbus/_native/bench/remoting_bench",
        "farbus/_native/bench/softgpu_bench",
        "farbus/_native/shim/libcuda.preload.so",
        "farbus/_native/shim/libcuda.so",
        "farbus/_native/shim/libcuda.so.1",
        "farbus/_native/shim/libnvidia-ml.preload.so",
        "farbus/_native/shim/libnvidia-ml.so",
        "farbus/_native/shim/libnvidia-ml.so.1",
        "farbus/_native/softgpu/libcuda.so",
        "farbus/_native/softgpu/libcuda.so.1",
        "farbus/_native/softgpu/libnvidia-ml.so",
        "farbus/_native/softgpu/libnvidia-ml.so.1",
        "farbus/agent/daemon.py",
        "farbus/api/v1/cluster.proto",
        "farbus/py.typed",
        "farbus/remoting/_server.abi3.so",
        "farbus/scheduler/_kernels.abi3.so",
        "farbus/scheduler/phases/gpu.py",
    ],
)
def test_wheel_has(wheel: Path, name: str) -> None:
    with zipfile.ZipFile(wheel) as packed:
        assert packed.getinfo(name).file_size > 0 or name.endswith("py.typed")


def test_every_module_of_the_tree_is_in_the_wheel(source: Path, wheel: Path) -> None:
    modules = {str(path.relative_to(source)) for path in source.glob("farbus/**/*.py")}
    for link in (path for path in (source / "farbus").iterdir() if path.is_symlink()):
        modules |= {f"farbus/{link.name}/{path.relative_to(link.resolve())}" for path in link.resolve().rglob("*.py")}
    with zipfile.ZipFile(wheel) as packed:
        assert {name for name in packed.namelist() if name.endswith(".py")} == modules


def test_installed_command_runs(installed: Path, tmp_path: Path) -> None:
    assert run(installed.parent / "farbus", "version", cwd=tmp_path).startswith("farbus ")


def test_installed_package_can_install_its_services(installed: Path, tmp_path: Path) -> None:
    run(installed.with_name("farbus"), "install", "agent", "--root", tmp_path, cwd=tmp_path)
    unit = tmp_path / "usr/local/lib/systemd/system/farbus-agent.service"
    assert f"ExecStart={installed.with_name('farbus')} agent" in unit.read_text()


def test_installed_native_files_are_found(installed: Path, tmp_path: Path) -> None:
    script = "from farbus.remoting import paths; print(paths.native_directory(), all(paths.native_parts().values()))"
    place, there = run(installed, "-c", script, cwd=tmp_path).split()
    assert (Path(place).parts[-2:], there) == (("farbus", "_native"), "True")
    assert Path(place).is_relative_to(installed.parent.parent)


SESSION = """\
import os, subprocess, sys, tempfile
from pathlib import Path
from farbus.remoting import paths
from farbus.remoting.launcher import Launch
from farbus.remoting.session import Server, write_session
from farbus.remoting.supervisor import Supervisor

PROGRAM = '''
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
count, device, context, address = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
back = ctypes.create_string_buffer(8)
for result in (
    cuda.cuInit(0), cuda.cuDeviceGetCount(ctypes.byref(count)), cuda.cuDeviceGet(ctypes.byref(device), 0),
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), cuda.cuCtxSetCurrent(context),
    cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(8)),
    cuda.cuMemcpyHtoD_v2(address, b"8 bytes.", ctypes.c_size_t(8)),
    cuda.cuMemcpyDtoH_v2(back, address, ctypes.c_size_t(8)),
):
    assert result == 0, result
print(count.value, back.raw.decode())
'''
secret = bytes(range(32))
libcuda = str(paths.software_gpu_library())
environment = {"FARBUS_SOFTGPU": "count=2", "FARBUS_SOFTGPU_NODE": f"packaging-{os.getpid()}"}
with tempfile.TemporaryDirectory() as place, Supervisor(
    libcuda=libcuda, secret=secret, environment=environment
) as supervisor:
    session = Path(place) / "session"
    write_session(session, [Server(address=supervisor.address[0], port=supervisor.address[1], secret=secret)])
    launch = Launch(session=session, shim=paths.shim_library().parent)
    subprocess.run([sys.executable, "-c", PROGRAM], env=launch.environment(os.environ), check=True, timeout=60)
"""


def test_installed_farbus_serves_a_session(installed: Path, tmp_path: Path) -> None:
    assert run(installed, "-I", "-c", SESSION, cwd=tmp_path) == "2 8 bytes.\n"


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The python of a bare machine with GPUs: the standard library, cffi, and Farbus without its dependencies."""
    place = tmp_path_factory.mktemp("bare")
    python, packages = make_environment(place, wheel)
    ours = Path(sysconfig.get_path("platlib"))
    for needed in [ours / "cffi", *ours.glob("_cffi_backend*.so")]:
        (packages / needed.name).symlink_to(needed)
    return python


def test_remoting_serves_a_session_with_cffi_alone(bare: Path, tmp_path: Path) -> None:
    assert run(bare, "-I", "-c", SESSION, cwd=tmp_path) == "2 8 bytes.\n"


def test_remoting_is_measured_with_cffi_alone(bare: Path, tmp_path: Path) -> None:
    figures = json.loads(run(bare, "-I", "-m", "farbus.remoting.bench", "--json", "--transport", "tcp", cwd=tmp_path))
    named = {row["name"]: row["value"] for row in figures["results"]}
    assert named.keys() >= {"posted_call", "round_trip", "h2d", "d2h", "first_launch_round_trips"}
    assert all(value > 0 for value in named.values())


@pytest.mark.parametrize(
    "what", ["shim_library", "software_gpu_library", "remoting_bench_program", "softgpu_bench_program"]
)
def test_missing_native_file_says_how_to_build_it(what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(paths, "package_root", lambda: tmp_path)
    with pytest.raises(paths.Unavailable, match=rf"^{tmp_path}.*is not built; run make build$"):
        getattr(paths, what)()


@pytest.mark.parametrize("name", ["two words", "a:b", "tab\there"])
def test_place_that_cannot_be_preloaded_is_refused(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shim = tmp_path / name / "native" / "build" / "shim" / "libcuda.so.1"
    shim.parent.mkdir(parents=True)
    shim.touch()
    monkeypatch.setattr(paths, "package_root", lambda: tmp_path / name)
    with pytest.raises(paths.Unavailable, match="LD_PRELOAD"):
        paths.shim_library()
