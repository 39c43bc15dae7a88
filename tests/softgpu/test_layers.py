"""The layers: functions of the driver API stand on its objects, those on the engine, and nobody calls upwards."""

from __future__ import annotations

import re
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

from tests.harness.symbols import Needs, needs_of, symbols_of
from tests.softgpu.driver_programs import require_library

SOURCES = Path(__file__).parents[2] / "native" / "softgpu"
LAYERS = {"driver": 1, "api": 2}  # by the beginning of a file's name; all others are the engine's
# Threads of the pool run blocks, and blocks that take long call threads of the pool: one room of three files.
ROOMS = {"block": "pool", "gang": "pool"}


def layer_of(room: str) -> int:
    return LAYERS.get(room.partition("_")[0], 0)


def room_of(path: Path) -> str:
    """The source file, without its ending, that an object was made of; handlers are there for several machines."""
    name = re.sub(r"_v\d$", "", path.stem)
    return ROOMS.get(name, name)


@pytest.fixture(scope="module")
def objects() -> dict[Path, str]:
    """All objects of libcuda.so.1, but those of native/cudart and of files that are no more, and their rooms."""
    sources = {path.stem for path in SOURCES.glob("*.c") if not path.name.startswith("nvml_")}
    paths = [path for path in require_library().glob("*.o") if re.sub(r"_v\d$", "", path.stem) in sources]
    return {path: room_of(path) for path in paths}


@pytest.fixture(scope="module")
def needs(objects: dict[Path, str]) -> Needs:
    return needs_of(objects)


def test_no_layer_knows_the_one_above(needs: Needs) -> None:
    assert {layer_of(room) for room in needs} == {0, 1, 2}
    assert not {
        f"{room} -> {other}: {', '.join(sorted(names))}"
        for room, others in needs.items()
        for other, names in others.items()
        if layer_of(room) < layer_of(other)
    }


def test_functions_of_the_api_are_in_its_files(objects: dict[Path, str]) -> None:
    below = {path: symbols_of(path)[0] for path, room in objects.items() if layer_of(room) < LAYERS["api"]}
    assert not {
        f"{path.stem}: {name}" for path, defined in below.items() for name in defined if re.match("cu[A-Z]", name)
    }


def test_no_file_is_called_by_what_it_calls(needs: Needs) -> None:
    try:
        TopologicalSorter({room: others.keys() for room, others in needs.items()}).prepare()
    except CycleError as error:
        ring = error.args[1][::-1]
        steps = [f"{a} -> {b}: {', '.join(sorted(needs[a][b]))}" for a, b in pairwise(ring)]
        pytest.fail("files call each other:\n" + "\n".join(steps))
