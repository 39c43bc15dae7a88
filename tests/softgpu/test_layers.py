"""The layers: functions of the driver API stand on its objects, those on the engine, and nobody calls upwards."""

from __future__ import annotations

import re
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

from tests.harness.symbols import Needs, foreign_names, home_of, includes_of, needs_of, rooms_of, symbols_of, upward
from tests.softgpu.document import DOCUMENT
from tests.softgpu.driver_programs import require_library

SOURCES = Path(__file__).parents[2] / "native" / "softgpu"
TABLES = DOCUMENT.read_text().partition("\n## Its source\n")[2].partition("\n## ")[0]
LAYERS, ROOMS = map(rooms_of, TABLES.split("| room |"))
"""Those of docs/softgpu.md, from top to bottom: the library's layers, and the engine's rooms, below its own files."""
# Threads of the pool run blocks, and blocks that take long call threads of the pool: one thing in three files.
ONE = {"engine/grid/block": "engine/grid/pool", "engine/grid/gang": "engine/grid/pool"}


def height_of(file: str) -> tuple[int, int]:
    """How high a file stands, by its layer, and in the engine by its room."""
    layer, *inside = Path(file).parent.parts
    room = -1 if layer != "engine" or not inside else ROOMS.index(inside[0])
    return -LAYERS.index(layer), -room


def file_of(path: Path) -> str:
    """The source, without its ending, that an object was made of; handlers are there for several machines."""
    name = re.sub(r"_v\d$", "", str(path.relative_to(require_library()).with_suffix("")))
    return ONE.get(name, name)


@pytest.fixture(scope="module")
def objects() -> dict[Path, str]:
    """All objects of libcuda.so.1, but those of native/cudart and of files that are no more, and their files."""
    library = require_library()
    paths = [path for layer in LAYERS for path in (library / layer).rglob("*.o")]
    return {path: name for path in paths if (SOURCES / f"{(name := file_of(path))}.c").exists()}


@pytest.fixture(scope="module")
def needs(objects: dict[Path, str]) -> Needs:
    return needs_of(objects)


def test_the_folders_are_those_that_the_document_has() -> None:
    for folder, names in ((SOURCES, LAYERS), (SOURCES / "engine", ROOMS)):
        there = {path.name for path in folder.iterdir() if path.is_dir()}
        assert there - {"compilers", "nvml", "tests"} == set(names)


def test_no_layer_and_no_room_knows_the_one_above(needs: Needs) -> None:
    assert {height_of(file)[0] for file in needs} == {0, -1, -2}
    assert upward(needs, height_of) == set()


def test_no_file_includes_of_a_layer_or_room_above() -> None:
    """Headers beside the engine's rooms, in none of them, are for all of them."""
    included = {
        file: {other: how for other, how in others.items() if str(Path(other).parent) != "engine"}
        for file, others in includes_of(SOURCES).items()
        if file.split("/")[0] in LAYERS
    }
    assert upward(included, height_of) == set()


def test_a_header_tells_of_the_source_whose_name_it_has(objects: dict[Path, str]) -> None:
    assert foreign_names(SOURCES, home_of(objects)) == set()


def test_functions_of_the_api_are_in_its_files(objects: dict[Path, str]) -> None:
    below = {path: symbols_of(path)[0] for path, file in objects.items() if not file.startswith("api/")}
    assert not {
        f"{path.stem}: {name}" for path, defined in below.items() for name in defined if re.match("cu[A-Z]", name)
    }


def test_functions_of_the_api_begin_as_calls() -> None:
    """DRIVER_CALL stands first, but where all that a function does is to answer as another one."""
    function = re.compile(
        r"^(\t?)DRIVER_EXPORT [^;{]*?([\w#]+)(?: parameters|\([^;{]*?\))\n\1\{\n(.*?)^\1\}$", re.DOTALL | re.MULTILINE
    )
    forwarded = re.compile(r"return cu\w+\([^;{}]*\);", re.DOTALL)
    found = [
        (name, body.strip())
        for path in (SOURCES / "api").glob("*.c")
        if set(re.findall(r'"(\.\./driver/\S+)"', text := path.read_text())) - {"../driver/abi.h"}
        # Those that a macro makes, too.
        for _, name, body in function.findall(re.sub(r"[ \t]*\\\n", "\n", text))
    ]
    assert len(found) > 390
    assert not [name for name, body in found if not body.startswith("DRIVER_CALL;") and not forwarded.fullmatch(body)]


def test_no_file_is_called_by_what_it_calls(needs: Needs) -> None:
    try:
        TopologicalSorter({file: others.keys() for file, others in needs.items()}).prepare()
    except CycleError as error:
        ring = error.args[1][::-1]
        steps = [f"{a} -> {b}: {', '.join(sorted(needs[a][b]))}" for a, b in pairwise(ring)]
        pytest.fail("files call each other:\n" + "\n".join(steps))
