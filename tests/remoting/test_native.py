"""The native tests of wire, transports, streams that are resumed and cudart, as make builds them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.harness.symbols import Needs, needs_of, rooms_of, upward_calls
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


def callees(part: str) -> Needs:
    """Which files of native/``part`` need symbols of which others of it, as the objects say that make has built."""
    sources = (ROOT / "native" / part).rglob("*.c")
    made = {source: (BUILD / "objects" / source.relative_to(ROOT / "native")).with_suffix(".o") for source in sources}
    for source, path in made.items():
        if not path.exists():
            pytest.skip(f"{source.relative_to(ROOT)} is not built: make -C native")
    return needs_of({path: str(source.relative_to(ROOT / "native" / part)) for source, path in made.items()})


@pytest.mark.parametrize("part", ["wire", "transport", "server", "client"])
def test_no_files_call_each_other_in_a_circle(part: str) -> None:
    TopologicalSorter(callees(part)).prepare()


@pytest.mark.parametrize(
    ("part", "title"), [("client", "The shim"), ("server", "The server"), ("transport", "Transports")]
)
def test_rooms_call_downwards(part: str, title: str) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text().partition(f"\n### {title}\n")[2].partition("\n##")[0]
    height = {room: (-number,) for number, room in enumerate(rooms_of(page))}
    called = callees(part)
    rooms = {str(Path(name).parent) for name in called}
    assert rooms == height.keys(), f"docs/architecture.md has each folder of native/{part}"
    assert upward_calls(called, lambda name: height[str(Path(name).parent)]) == set()


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
