"""What a run of the lab that was killed has left is removed by the next one, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.lab.place import Place

PREFIX = "lab."

HOLD = "import sys; from pathlib import Path; from tests.lab.place import Place;" + (
    f"place = Place(Path(sys.argv[1]), {PREFIX!r}); print(place.path, flush=True); sys.stdin.read()"
)


def test_place_of_a_killed_process_is_removed_by_the_next_one(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent.parent,
    ) as holder:  # fmt: skip
        assert holder.stdout is not None
        held = Path(holder.stdout.readline().rstrip())
        (held / "file").touch()
        Place(tmp_path, PREFIX).remove()
        assert set(tmp_path.iterdir()) == {held, other}
        holder.kill()
    Place(tmp_path, PREFIX).remove()
    assert set(tmp_path.iterdir()) == {other}


def test_place_that_was_renamed_stays(tmp_path: Path) -> None:
    place = Place(tmp_path, PREFIX)
    place.path.rename(tmp_path / "kept")
    place.remove()
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_place_that_is_removed_twice_closes_nothing_of_others(tmp_path: Path) -> None:
    place = Place(tmp_path, PREFIX)
    place.remove()
    # Numbers of descriptors are given again.
    with (tmp_path / "file").open("w") as file:
        place.remove()
        file.write("x")
