"""The shim's copies: named by their content, whole or not there, kept while a program has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from farbus.agent.shim_copies import ShimCopies
from farbus.errors import Unavailable


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    directory = tmp_path / "installed"
    directory.mkdir()
    (directory / "libcuda.so.1").write_bytes(b"first")
    (directory / "libnvidia-ml.so.1").write_bytes(b"management")
    return directory


def test_an_upgrade_changes_no_copy(installed: Path, tmp_path: Path) -> None:
    copies = ShimCopies(tmp_path / "shims", installed)
    before = copies.current()
    assert copies.current() == before
    (installed / "libcuda.so.1").unlink()
    (installed / "libcuda.so.1").write_bytes(b"second")
    after = copies.current()
    assert after != before
    assert (before / "libcuda.so.1").read_bytes() == b"first"
    assert (after / "libcuda.so.1").read_bytes() == b"second"
    assert (after / "libnvidia-ml.so.1").read_bytes() == b"management"
    assert ShimCopies(tmp_path / "shims", installed).current() == after


def test_a_copy_that_a_power_cut_has_emptied_is_made_again(installed: Path, tmp_path: Path) -> None:
    home = tmp_path / "shims"
    copy = ShimCopies(home, installed).current()
    (copy / "libcuda.so.1").write_bytes(b"")
    (copy / "libnvidia-ml.so.1").unlink()
    assert ShimCopies(home, installed).current() == copy
    assert (copy / "libcuda.so.1").read_bytes() == b"first"
    assert (copy / "libnvidia-ml.so.1").read_bytes() == b"management"
    assert [path.name for path in home.iterdir()] == [copy.name]


def test_copies_go_when_nobody_has_them(installed: Path, tmp_path: Path) -> None:
    home = tmp_path / "shims"
    old = ShimCopies(home, installed).current()
    (installed / "libcuda.so.1").write_bytes(b"second one")
    copies = ShimCopies(home, installed)
    new = copies.current()
    (home / ".new-half").mkdir()
    assert copies.remove_others([old]) == (".new-half",)
    assert copies.remove_others([]) == (old.name,)
    assert [path.name for path in home.iterdir()] == [new.name]


def test_what_is_not_ours_stays_there_whatever_the_directory_is(installed: Path, tmp_path: Path) -> None:
    """An operator's link in its place, or another directory as the state's: what lay there was removed."""
    others = tmp_path / "etc"
    names = ("ssl", "0123456789abcdeg", "0123456789abcdef0", ".newer")
    for name in names:
        (others / name).mkdir(parents=True)
    (others / "0123456789abcdef").mkdir()
    home = tmp_path / "shims"
    home.symlink_to(others)
    copies = ShimCopies(home, installed)
    current = copies.current()
    assert copies.remove_others([]) == ("0123456789abcdef",)
    assert {path.name for path in others.iterdir()} == {*names, current.name}


def test_everybody_can_read_them(installed: Path, tmp_path: Path) -> None:
    (installed / "libcuda.so.1").chmod(0o600)
    copy = ShimCopies(tmp_path / "shims", installed).current()
    modes = {path: path.stat().st_mode & 0o777 for path in (copy.parent, copy, copy / "libcuda.so.1")}
    assert set(modes.values()) == {0o755}


def test_what_can_not_be_copied_is_told_in_a_line(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "shims").write_text("a file")
    with pytest.raises(Unavailable, match=r"copy the shim to .*/shims: File exists"):
        ShimCopies(tmp_path / "shims", installed).current()


def test_without_an_installation_nothing_is_removed_but_what_nobody_has(tmp_path: Path) -> None:
    home = tmp_path / "shims"
    (home / "used").mkdir(parents=True)
    copies = ShimCopies(home, tmp_path / "nowhere")
    assert copies.remove_others([home / "used"]) == ()
    with pytest.raises(Unavailable, match="No such file"):
        copies.current()
