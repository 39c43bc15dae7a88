"""Tasks' directories: what is written and read, with whose rights, and what is refused."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from farbus.errors import FarbusError, InvalidInput, Unavailable
from farbus.linux import stager
from farbus.linux.staging import TaskDirectories
from farbus.linux.users import Account
from farbus.model.staging import Manifest, StagedFile, digest

ME = None


@pytest.fixture
def directories(tmp_path: Path) -> TaskDirectories:
    return TaskDirectories(tmp_path / "tasks")


def manifest(contents: dict[str, bytes], **more: object) -> Manifest:
    return Manifest(
        files=tuple(
            StagedFile(path=path, size=len(data), sha256=digest(data), **more) for path, data in contents.items()
        )
    )


async def pieces(contents: dict[str, bytes]) -> AsyncIterator[tuple[str, bytes]]:
    for path, data in contents.items():
        yield path, data


async def fill(directories: TaskDirectories, contents: dict[str, bytes], account: Account | None = ME) -> Path:
    path = directories.make("t", account)
    await directories.write("t", account, manifest(contents), pieces(contents))
    return path


async def read(directories: TaskDirectories, *paths: str, most_bytes: int = 2**40, most_files: int = 100) -> dict:
    found: dict[str, bytes] = {}
    stream = directories.read("t", ME, paths, most_files=most_files, most_bytes=most_bytes)
    async for file, data in stream:
        found[file.path] = found.get(file.path, b"") + data
        if file.sha256:
            assert file.sha256 == digest(found[file.path])
    return found


async def remove(directories: TaskDirectories) -> None:
    await directories.clear(directories.set_aside("t"))
    assert directories.list() == directories.aside() == ()


def nest(path: Path, depth: int) -> None:
    """Make directories in each other, deeper than any path may be long."""
    current = os.open(path, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=current)
        following = os.open("d", os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = following
    os.close(os.open("leaf", os.O_CREAT | os.O_WRONLY, dir_fd=current))
    os.close(current)


async def test_what_is_written_can_be_read(directories: TaskDirectories) -> None:
    contents = {"a": b"", "b/c": b"x" * 3_000_000, "b/dé": b"\0\n"}
    path = await fill(directories, contents)
    assert (path / "b" / "c").read_bytes() == contents["b/c"]
    assert await read(directories, "a", "b") == contents


async def test_directory_is_its_users_alone(directories: TaskDirectories) -> None:
    path = directories.make("t", ME)
    assert path.stat().st_mode & 0o777 == 0o700


async def test_program_stays_executable(directories: TaskDirectories) -> None:
    path = directories.make("t", ME)
    await directories.write("t", ME, manifest({"p": b"#!"}, executable=True), pieces({"p": b"#!"}))
    assert os.access(path / "p", os.X_OK)


async def test_file_with_another_content_never_has_its_name(directories: TaskDirectories) -> None:
    path = directories.make("t", ME)
    with pytest.raises(InvalidInput, match="a: arrived with another content"):
        await directories.write("t", ME, manifest({"a": b"good"}), pieces({"a": b"evil"}))
    assert list(path.iterdir()) == []


async def test_file_that_breaks_off_never_has_its_name(directories: TaskDirectories) -> None:
    path = directories.make("t", ME)
    with pytest.raises(InvalidInput, match="a: the rest did not come"):
        await directories.write("t", ME, manifest({"a": b"whole"}), pieces({"a": b"wh"}))
    assert list(path.iterdir()) == []


async def test_symbolic_link_is_never_followed_when_writing(directories: TaskDirectories, tmp_path: Path) -> None:
    path = directories.make("t", ME)
    (path / "d").symlink_to(tmp_path)
    with pytest.raises(InvalidInput):
        await directories.write("t", ME, manifest({"d/a": b"x"}), pieces({"d/a": b"x"}))
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("kind", ["link", "pipe", "socket", "link in the way"])
async def test_what_is_no_file_is_not_read(directories: TaskDirectories, kind: str) -> None:
    path = await fill(directories, {"d/x": b"secret"})
    match kind:
        case "link":
            (path / "a").symlink_to("/etc/shadow")
        case "pipe":
            os.mkfifo(path / "a")
        case "socket":
            with socket.socket(socket.AF_UNIX) as bound:
                bound.bind(str(path / "a"))
        case "link in the way":
            (path / "a").symlink_to("d")
    with pytest.raises(InvalidInput, match="stage out of task t: a"):
        await read(directories, "a/x" if kind == "link in the way" else "a")


async def test_name_that_is_no_text_is_told_by_its_bytes(directories: TaskDirectories) -> None:
    """Else it could be told to nobody: neither JSON nor protocol buffers take it."""
    path = await fill(directories, {})
    (path / "d").mkdir()
    os.symlink("nowhere", os.fsencode(path / "d") + b"/a\n\xff")
    with pytest.raises(InvalidInput, match=r"stage out of task t: d/a\\n\\xff: is a symbolic link"):
        await read(directories, "d")


@pytest.mark.parametrize(
    ("said", "error", "told"),
    [
        (b'{"path": "a", "si', Unavailable, "the stager died"),
        (b"nonsense\n", FarbusError, "said what it should not"),
        (b'{"path": 7}\n', FarbusError, "said what it should not"),
        (b'{"error": "\\ud800"}\n', InvalidInput, r"\\ud800"),
    ],
)
async def test_stager_that_is_killed_or_says_nonsense_is_an_error_like_others(
    directories: TaskDirectories,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    said: bytes,
    error: type[FarbusError],
    told: str,
) -> None:
    """It runs as the task's user, whose other programs may kill it in the middle of a line."""
    await fill(directories, {"a": b"x"})
    other = tmp_path / "stager.py"
    other.write_text(f"import os\nos.write(1, {said!r})\n")
    monkeypatch.setattr("farbus.linux.staging.STAGER", other)
    with pytest.raises(error, match=told):
        await read(directories, "a")


async def test_missing_output_is_named(directories: TaskDirectories) -> None:
    await fill(directories, {})
    with pytest.raises(InvalidInput, match="stage out of task t: result: no such file or directory"):
        await read(directories, "result")


async def test_sparse_file_counts_with_its_whole_size(directories: TaskDirectories) -> None:
    path = await fill(directories, {})
    (path / "sparse").touch()
    os.truncate(path / "sparse", 2**30)
    with pytest.raises(InvalidInput, match="sparse: with it there are 1073741824 bytes, more than 1048576"):
        await read(directories, "sparse", most_bytes=2**20)


async def test_too_many_files_are_refused(directories: TaskDirectories) -> None:
    await fill(directories, {f"d/{number}": b"" for number in range(11)})
    with pytest.raises(InvalidInput, match="with it there are more than 10 files; pack them"):
        await read(directories, "d", most_files=10)


async def test_everything_goes_also_what_its_owner_has_closed(directories: TaskDirectories, tmp_path: Path) -> None:
    path = await fill(directories, {"d/e/x": b"x"})
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    (path / "link").symlink_to(outside)
    (path / "d" / "e").chmod(0)
    (path / "d").chmod(0)
    await remove(directories)
    assert (outside / "kept").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_other_users_files_are_written_with_their_rights(tmp_path: Path) -> None:
    directories = TaskDirectories(passable(tmp_path) / "tasks")
    somebody = Account(name="somebody", uid=61_001, gid=61_002)
    path = await fill(directories, {"d/a": b"x"}, somebody)
    for each in (path, path / "d", path / "d" / "a"):
        assert (each.stat().st_uid, each.stat().st_gid) == (61_001, 61_002)
    # A link to what only root can read stays closed to them, also when root's agent asks.
    (tmp_path / "secret").write_text("root's")
    (tmp_path / "secret").chmod(0o600)
    os.link(tmp_path / "secret", path / "hard")
    with pytest.raises(FarbusError, match="hard: permission denied"):
        async for _ in directories.read("t", somebody, ["hard"], most_files=1, most_bytes=100):
            pass
    await remove(directories)


async def test_directory_goes_however_deep_it_is(directories: TaskDirectories) -> None:
    nest(directories.make("t", ME), 1_100)
    await remove(directories)


def test_directory_with_more_names_than_are_held_at_a_time_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stager, "BATCH", 3)
    for name in ("a", "b/a", "b/b", "b/c", "b/d/e", "b/f/g", "c", "d", "e/f"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    root = os.open(tmp_path, os.O_RDONLY)
    stager.Clearing(root, None).run()
    os.close(root)
    assert list(tmp_path.iterdir()) == []


async def test_output_that_is_too_deep_is_refused(directories: TaskDirectories) -> None:
    nest(directories.make("t", ME), 40)
    with pytest.raises(InvalidInput, match="deeper than 32 directories; pack them"):
        await read(directories, "d")


async def test_directories_count_like_files(directories: TaskDirectories) -> None:
    path = directories.make("t", ME)
    for number in range(11):
        (path / "d" / str(number)).mkdir(parents=True)
    with pytest.raises(InvalidInput, match="with it there are more than 10 files; pack them"):
        await read(directories, "d", most_files=10)


async def test_name_can_be_used_again_before_the_old_files_are_gone(directories: TaskDirectories) -> None:
    await fill(directories, {"old": b"x"})
    path = directories.make("t", ME)
    assert list(path.iterdir()) == []
    assert len(directories.aside()) == 1


async def test_paths_stand_in_no_command_line(directories: TaskDirectories, monkeypatch: pytest.MonkeyPatch) -> None:
    await fill(directories, {"secret": b"x"})
    started: list[str] = []
    create = asyncio.create_subprocess_exec

    async def watched(*argv: str, **more: Any) -> asyncio.subprocess.Process:
        started.extend(argv)
        return await create(*argv, **more)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", watched)
    assert await read(directories, "secret") == {"secret": b"x"}
    assert "get" in started
    assert not any("secret" in each for each in started)


def passable(path: Path) -> Path:
    """Let other users reach what is below ``path``."""
    for each in (path, *path.parents):
        if each.stat().st_mode & 0o001 == 0:
            each.chmod(each.stat().st_mode | 0o011)
    return path


@pytest.fixture
def others(tmp_path: Path) -> TaskDirectories:
    """Directories of user 61001, who has the subordinate ids from 200000 to 200009."""
    (tmp_path / "subuid").write_text("# a comment\nnobody:300000:10\n61001:200000:10\n")
    directories = TaskDirectories(passable(tmp_path) / "tasks", subuid=tmp_path / "subuid")
    directories.make("t", Account(name="somebody", uid=61_001, gid=61_002))
    return directories


def leave(directories: TaskDirectories, owner: int) -> Path:
    """Leave what only ``owner`` may remove in the task's directory."""
    left = directories.path("t") / "left"
    (left / "deeper").mkdir(parents=True)
    (left / "deeper" / "x").touch()
    for each in (left, left / "deeper", left / "deeper" / "x"):
        os.chown(each, owner, owner)
        each.chmod(0o700)
    return left


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_files_of_subordinate_ids_go(others: TaskDirectories) -> None:
    leave(others, 200_009)
    await remove(others)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_root_removes_nothing_from_strangers_directories(others: TaskDirectories) -> None:
    leave(others, 200_010)
    aside = others.set_aside("t")
    with pytest.raises(InvalidInput, match="left: belongs to user id 200010, not to the task; remove it by hand"):
        await others.clear(aside)
    assert (others.path(aside) / "left" / "deeper" / "x").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
async def test_root_follows_no_link_when_it_removes(others: TaskDirectories, tmp_path: Path) -> None:
    left = leave(others, 200_000)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").touch()
    (left / "link").symlink_to(tmp_path / "outside")
    await remove(others)
    assert (tmp_path / "outside" / "kept").exists()
