"""The software GPU's layers: the driver API's functions stand on its objects, and those on the engine."""

from __future__ import annotations

import shutil
import subprocess
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

from tests.softgpu.driver_programs import require_library

SOURCES = Path(__file__).parents[2] / "native" / "softgpu"
DRIVER = sorted(path.stem for path in SOURCES.glob("*.c") if path.name.startswith(("driver_", "api_")))


def symbols_of(room: str) -> tuple[set[str], set[str]]:
    """The symbols that the object of a source file defines, and those that it needs from others."""
    nm = shutil.which("nm")
    if not nm:
        pytest.skip("no nm")
    output = subprocess.run(
        [nm, "-P", str(require_library() / f"{room}.o")], check=True, capture_output=True, text=True
    ).stdout
    symbols = [line.split()[:2] for line in output.splitlines()]
    defined = {name for name, kind in symbols if kind in "TDBRVW"}
    return defined, {name for name, kind in symbols if kind == "U"}


def calls() -> dict[str, dict[str, set[str]]]:
    """Of each file of the driver: which others it needs, and for which symbols."""
    symbols = {room: symbols_of(room) for room in DRIVER}
    home = {name: room for room, (defined, _) in symbols.items() for name in defined}
    needs: dict[str, dict[str, set[str]]] = {room: {} for room in DRIVER}
    for room, (_, needed) in symbols.items():
        for name in needed & home.keys():
            needs[room].setdefault(home[name], set()).add(name)
    return needs


def test_objects_know_nothing_of_the_api() -> None:
    needs = calls()
    upwards = {
        f"{room} -> {other}: {', '.join(sorted(names))}"
        for room in DRIVER
        for other, names in needs[room].items()
        if room.startswith("driver_") and other.startswith("api_")
    }
    assert not upwards


def test_objects_are_no_functions_of_the_api() -> None:
    objects = [room for room in DRIVER if room.startswith("driver_")]
    assert not {f"{room}: {name}" for room in objects for name in symbols_of(room)[0] if name.startswith("cu")}


def test_no_file_of_the_driver_is_called_by_what_it_calls() -> None:
    needs = calls()
    assert sum(map(len, needs.values())) > len(DRIVER)  # the objects were read
    try:
        TopologicalSorter({room: others.keys() for room, others in needs.items()}).prepare()
    except CycleError as error:
        ring = error.args[1][::-1]
        steps = [f"{a} -> {b}: {', '.join(sorted(needs[a][b]))}" for a, b in pairwise(ring)]
        pytest.fail("files of the driver call each other:\n" + "\n".join(steps))
