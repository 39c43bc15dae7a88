"""What the lab's tests share: the image, a wheel of this tree, and when they run at all."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from farbus.cli.toolchain import find_toolchain
from farbus.errors import NotFound
from tests.lab.guest import Guest, GuestError, patient
from tests.lab.image import ensure_image, image_directory, image_is_there, missing_commands
from tests.lab.nodes import Lab

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
WHEEL_LIMIT_S = patient(600)

LOGS = Path(os.environ.get("FARBUS_LAB_LOGS") or ROOT / "build" / "lab-logs")
"""Where consoles and journals of the guests are kept when a test has failed: a directory for each test."""

JOURNAL_LIMIT_S = patient(20.0)
"""A guest that hangs has no journal to give."""

TOLD = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[TOLD] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print what the tests have measured."""
    if config.stash[TOLD]:
        terminalreporter.section("lab")
        for line in config.stash[TOLD]:
            terminalreporter.line(line)


def logs_of(item: pytest.Item) -> Path:
    """Return where what guests have said in a test is kept."""
    return LOGS / re.sub(r"[^\w.-]+", "-", f"{item.path.stem}.{item.name}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Keep what guests have said that an error ends, as it does those from which a snapshot was to be made."""
    directory = logs_of(item)
    shutil.rmtree(directory, ignore_errors=True)
    Guest.before_it_ends_in_error = lambda guest: keep_logs(guest, directory)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep what the other guests have said when a test has failed."""
    report = yield
    if report.failed:
        for guest in Guest.living:
            keep_logs(guest, logs_of(item))
        if logs_of(item).exists():
            report.sections.append(("lab", f"consoles and journals: {logs_of(item)}"))
    return report


def keep_logs(guest: Guest, directory: Path) -> None:
    """Write what QEMU, the console and the journal of a guest have said."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("qemu.log", "console.log"):
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(guest.place / name, directory / f"{guest.name}.{name}")
    # One that has not come up has no journal to give.
    if guest.is_on and guest.boot_id:
        journal = directory / f"{guest.name}.journal.log"
        with contextlib.suppress(GuestError, OSError):
            said = guest.run("journalctl", "--no-pager", "--boot", limit_s=JOURNAL_LIMIT_S, margin_s=JOURNAL_LIMIT_S)
            journal.write_bytes(said.output)


@pytest.fixture(scope="session")
def tell(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Takes lines that the summary ends with: figures that nothing is asserted of."""
    return pytestconfig.stash[TOLD].append


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Prints a line at once, which pytest would keep until the test has ended: a run that is killed has said it."""

    def print_now(line: str) -> None:
        with capsys.disabled():
            print(f"\nlab: {line}", file=sys.stderr, flush=True)

    return print_now


def asked_for() -> bool:
    """Say whether this is ``make check-lab``."""
    return os.environ.get("FARBUS_LAB") == "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip by a mark, which the summary tells in one line of each file, and not in one of each test."""
    if asked_for():
        return
    mark = pytest.mark.skip(reason="boots virtual machines for minutes: run make check-lab (FARBUS_LAB=1)")
    for item in items:
        # All tests of the run are here, not those of this directory alone.
        if item.path.is_relative_to(HERE) and "image" in getattr(item, "fixturenames", ()):
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


@pytest.fixture(scope="module")
def lab(image: Path, request: pytest.FixtureRequest, tell: Callable[[str], None]) -> Iterator[Lab]:
    """Nodes on a network of their own, one set for each module of tests; see :mod:`tests.lab.nodes`."""

    def wheel() -> Path:
        (file,) = request.getfixturevalue("wheel").glob("*.whl")
        assert isinstance(file, Path)
        return file

    with Lab(image, wheel, tell) as made:
        yield made


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with ``stay`` and ``vectors``, CUDA programs that work until a file is there; empty without nvcc.

    Guests have no compiler.
    """
    directory = tmp_path_factory.mktemp("programs")
    # Users of the guest read it.
    directory.chmod(0o755)
    with contextlib.suppress(NotFound):
        for name in ("stay", "vectors"):
            find_toolchain().compile(ROOT / f"tests/programs/cluster/{name}.cu", directory / name)
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
    # The same tree makes the same wheel, wherever it is built: snapshots are found by its contents.
    environment["CFLAGS"] = f"-O2 -g -ffile-prefix-map={place}=."
    command = [sys.executable, "-m", "build", "--no-isolation", "--skip-dependency-check", "--wheel"]
    done = subprocess.run(
        [*command, "--outdir", str(place / "dist"), str(place / "tree")],
        env=environment, capture_output=True, text=True, timeout=WHEEL_LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    shutil.rmtree(place / "tree")
    return place / "dist"


@pytest.fixture(scope="session")
def next_wheel(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheel as its next version would be: the same code under another number."""
    (old,) = wheel.glob("*.whl")
    name, version, tags = old.name.removesuffix(".whl").split("-", 2)
    later = f"{version}.post1"
    directory = tmp_path_factory.mktemp("next-wheel")
    before, after = f"{name}-{version}.dist-info/", f"{name}-{later}.dist-info/"
    changes = {
        f"{name}/__init__.py": lambda text: text.replace(f'"{version}"', f'"{later}"'),
        f"{after}METADATA": lambda text: text.replace(f"Version: {version}\n", f"Version: {later}\n", 1),
        # Without hashes (recording installed projects): those of the changed files would be wrong.
        f"{after}RECORD": lambda text: re.sub("(?m)^([^,]*),.*$", r"\1,,", text).replace(before, after),
    }
    with zipfile.ZipFile(old) as source, zipfile.ZipFile(directory / f"{name}-{later}-{tags}.whl", "w") as target:
        for entry in source.infolist():
            content = source.read(entry)
            entry.filename = entry.filename.replace(before, after)
            if change := changes.get(entry.filename):
                content = change(content.decode()).encode()
            target.writestr(entry, content)
    return directory
