"""The native tests of wire, transports, streams that are resumed and cudart, as make builds them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.harness.symbols import foreign_names, home_of, includes_of, needs_of, rooms_of, upward
from tests.remoting.harness import BUILD, ROOT, SHIM, Remote, open_twice

GLIBC = (2, 28)
"""The oldest glibc of a program that the shim is loaded into."""


RDMA = "rdma_test"
"""That one wants a device."""


def run(name: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    if shutil.which("make") is None or shutil.which("cc") is None:
        pytest.skip("make and a C compiler are not installed")
    program = BUILD / "tests" / name
    subprocess.run(["make", "-s", "-C", ROOT / "native", f"build/tests/{name}"], check=True, capture_output=True)
    return subprocess.run([program], env=environment, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize(
    "name", sorted({source.stem for source in (ROOT / "native" / "tests").glob("*_test.c")} - {RDMA})
)
def test_native(name: str) -> None:
    done = run(name)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def test_nothing_waits_by_a_clock_that_may_be_set() -> None:
    """pthread_mutex_timedlock knows no other clock; conditions are made with one (transport/ground/thread.h)."""
    waits = re.compile(r"\b(pthread_mutex_timedlock|pthread_rwlock_timed\w+|sem_timedwait|pthread_cond_timedwait)\(")
    folders = ("client", "client_nvml", "server", "transport", "wire")
    sources = [source for folder in folders for source in (ROOT / "native" / folder).rglob("*.[ch]")]
    found = {(source.name, match[1]) for source in sources for match in waits.finditer(source.read_text())}
    assert found == {("thread.c", "pthread_cond_timedwait")}


def objects(part: str) -> dict[Path, str]:
    """The objects of native/``part`` that make has built, and their sources, without the ending."""
    sources = [source.relative_to(ROOT / "native") for source in (ROOT / "native" / part).rglob("*.c")]
    made = {(BUILD / "objects" / source).with_suffix(".o"): source for source in sources}
    for path, source in made.items():
        if not path.exists():
            pytest.skip(f"native/{source} is not built: make -C native")
    return {path: str(source.relative_to(part).with_suffix("")) for path, source in made.items()}


PARTS = pytest.mark.parametrize("part", ["wire", "transport", "server", "client"])


@PARTS
def test_no_files_call_each_other_in_a_circle(part: str) -> None:
    TopologicalSorter(needs_of(objects(part))).prepare()


@PARTS
def test_a_header_tells_of_the_source_whose_name_it_has(part: str) -> None:
    assert foreign_names(ROOT / "native" / part, home_of(objects(part))) == set()


ROOMS = {"client": "The shim", "server": "The server", "transport": "Transports"}
"""Whose folders are rooms, and the section of docs/architecture.md that has them from top to bottom."""


def height_in(part: str) -> Callable[[str], tuple[int]]:
    """How high a file stands, by its room; lowest are the headers that are in none, which all rooms know."""
    page = (ROOT / "docs" / "architecture.md").read_text().partition(f"\n### {ROOMS[part]}\n")[2].partition("\n##")[0]
    rooms = rooms_of(page)
    assert {path.name for path in (ROOT / "native" / part).iterdir() if path.is_dir()} == set(rooms)
    return lambda file: (-[*rooms, "."].index(str(Path(file).parent)),)


@pytest.mark.parametrize("part", ROOMS)
def test_rooms_call_downwards(part: str) -> None:
    assert upward(needs_of(objects(part)), height_in(part)) == set()


@pytest.mark.parametrize("part", ROOMS)
def test_rooms_include_of_rooms_below(part: str) -> None:
    """A header that lies in no room is not asked what it includes: it says what all of them share."""
    included = {file: others for file, others in includes_of(ROOT / "native" / part).items() if "/" in file}
    assert upward(included, height_in(part)) == set()


@pytest.mark.parametrize("inline", ["256", "0"])
def test_native_rdma(fake_verbs: Path, inline: str) -> None:
    done = run(RDMA, {**os.environ, "LD_LIBRARY_PATH": str(fake_verbs), "FAKE_VERBS_MAX_INLINE": inline})
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


@pytest.mark.parametrize("library", ["libcuda.so.1", "libnvidia-ml.so.1"])
def test_shim_loads_where_glibc_is_old(library: str) -> None:
    if shutil.which("objdump") is None or not (SHIM / library).exists():
        pytest.skip("needs objdump and the shim that make -C native builds")
    table = subprocess.run(["objdump", "-T", SHIM / library], capture_output=True, text=True, check=True).stdout
    needed = {match[2]: match[1] for match in re.finditer(r"\(GLIBC_([\d.]+)\) (\w+)", table)}
    assert needed
    # The list to add to: native/wire/glibc.h.
    assert {name: v for name, v in needed.items() if tuple(map(int, v.split("."))) > GLIBC} == {}


@pytest.mark.parametrize(("name", "function"), [("libcuda.so", "cuInit"), ("libnvidia-ml.so", "nvmlInit_v2")])
def test_a_library_by_its_name_without_a_number_is_the_same_library(remote: Remote, name: str, function: str) -> None:
    done = open_twice(remote, name, f"{name}.1", function)
    assert (done.returncode, done.stdout) == (0, "True 0\n"), done.stdout + done.stderr


@pytest.mark.parametrize("name", ["cuda", "nvidia-ml"])
def test_a_library_is_found_as_a_linker_finds_it(remote: Remote, name: str) -> None:
    done = remote.run(sys.executable, "-c", f"import ctypes.util; print(ctypes.util.find_library({name!r}))")
    assert (done.returncode, done.stdout) == (0, f"lib{name}.so.1\n"), done.stdout + done.stderr


@pytest.mark.parametrize(("name", "function"), [("cuda", "cuInit(0)"), ("nvidia-ml", "nvmlInit_v2()")])
def test_a_program_is_linked_with_a_library_by_its_name_without_a_number(
    remote: Remote, tmp_path: Path, name: str, function: str
) -> None:
    """A program, and a library without whose own word for it nobody loads that one: Triton before 3.5 makes such."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    source = tmp_path / "linked.c"
    source.write_text(f"int {function.replace('0', 'unsigned')}; int main(void) {{ return {function}; }}")
    linked = tmp_path / "linked"
    subprocess.run(["cc", source, "-o", linked, f"-L{SHIM}", f"-l{name}"], check=True)
    assert f"[lib{name}.so.1]" in subprocess.run(["readelf", "-d", linked], check=True, stdout=-1, text=True).stdout
    done = remote.run(str(linked))
    assert done.returncode == 0, done.stdout + done.stderr
