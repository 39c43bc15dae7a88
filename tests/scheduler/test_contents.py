"""The scheduler's store of contents: what counts, what goes, what is gone on with."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from farbus.errors import Conflict, InvalidInput, Unavailable
from farbus.model.staging import CHUNK_BYTES, Manifest, StagedFile, digest
from farbus.scheduler.contents import SETTLE_S, UNUSED_KEPT_S, Contents, Limits
from farbus.scheduler.manifests import Manifests
from tests.scheduler.staging_site import BIG, LIMIT, PART, keep


async def test_full_store_refuses_and_recovers(tmp_path: Path) -> None:
    contents = Contents(tmp_path, Limits(bytes=100, files=10, user_bytes=80, user_files=10))
    async with contents.receive("bob", 60, digest(b"x")):
        with pytest.raises(Unavailable, match="is full"):
            async with contents.receive("eve", 41):
                pass
        with pytest.raises(InvalidInput, match="over the limit of 80 B"):
            async with contents.receive("bob", 21):
                pass
    async with contents.receive("eve", 80):
        pass


async def test_files_are_limited_in_number_too(tmp_path: Path) -> None:
    contents = Contents(tmp_path, Limits(bytes=100, files=3, user_bytes=100, user_files=2))
    await keep(contents, "bob", b"1")
    await keep(contents, "bob", b"")
    with pytest.raises(InvalidInput, match="user bob has 2 files here: one more is over the limit of 2"):
        await keep(contents, "bob", b"3")
    await keep(contents, "eve", b"1")
    with pytest.raises(Unavailable, match="3 in number, and is full"):
        await keep(contents, "joe", b"1")


async def test_same_content_twice_counts_once(tmp_path: Path) -> None:
    contents = Contents(tmp_path, Limits(bytes=100, files=10, user_bytes=100, user_files=10))
    await keep(contents, "bob", b"same")
    await keep(contents, "bob", b"same")
    assert (contents.counted("bob"), contents.used_bytes) == ((4, 1), 4)


async def test_released_content_makes_room_for_others(tmp_path: Path) -> None:
    now = 1_000.0
    contents = Contents(tmp_path, Limits(bytes=10, files=10, user_bytes=10, user_files=10), wall=lambda: now)
    sha256 = await keep(contents, "bob", b"12345678")
    contents.name("bob", [sha256])
    now += SETTLE_S + 1
    await contents.sweep((), started=now)
    assert (contents.counted("bob"), contents.used_bytes) == ((0, 0), 8)
    await keep(contents, "eve", b"1234")
    assert await contents.sizes("bob", [sha256]) == [None]
    assert contents.used_bytes == 4


async def test_released_content_that_is_asked_for_counts_again(tmp_path: Path) -> None:
    now = 1_000.0
    contents = Contents(tmp_path, Limits(bytes=20, files=10, user_bytes=10, user_files=10), wall=lambda: now)
    sha256 = await keep(contents, "bob", b"12345678")
    contents.name("bob", [sha256])
    now += SETTLE_S + 1
    await contents.sweep((), started=now)
    assert await contents.sizes("bob", [sha256]) == [8]
    assert contents.counted("bob") == (8, 1)


async def test_released_contents_lead_nobody_over_his_limit(tmp_path: Path) -> None:
    now = 1_000.0
    contents = Contents(tmp_path, Limits(bytes=20, files=10, user_bytes=10, user_files=10), wall=lambda: now)
    sha256 = await keep(contents, "bob", b"12345678")
    contents.name("bob", [sha256])
    now += SETTLE_S + 1
    await contents.sweep((), started=now)
    await keep(contents, "bob", b"abcdefgh")
    assert await contents.sizes("bob", [sha256]) == [None]
    assert contents.counted("bob") == (8, 1)


async def test_content_is_received_while_it_is_removed(tmp_path: Path) -> None:
    now = 1_000.0
    contents = Contents(tmp_path, Limits(bytes=100, files=10, user_bytes=100, user_files=10), wall=lambda: now)
    sha256 = await keep(contents, "bob", b"x")
    now += UNUSED_KEPT_S + 1
    await asyncio.gather(keep(contents, "bob", b"x"), contents.sweep((), started=now))
    assert await contents.sizes("bob", [sha256]) == [1]
    assert contents.used_bytes == 1
    assert len(list((tmp_path / "users").rglob(sha256))) == 1


async def test_content_that_is_asked_for_before_it_is_removed_stays(tmp_path: Path) -> None:
    now = 1_000.0
    contents = Contents(tmp_path, Limits(bytes=100, files=10, user_bytes=100, user_files=10), wall=lambda: now)
    sha256 = await keep(contents, "bob", b"x")
    now += UNUSED_KEPT_S + 1
    async with contents._disk:
        sweeping = asyncio.ensure_future(contents.sweep((), started=now))
        await asyncio.sleep(0)
        assert await contents.sizes("bob", [sha256]) == [1]
    assert await sweeping == 0
    assert await contents.sizes("bob", [sha256]) == [1]


async def test_call_that_is_cancelled_while_it_writes_leaves_nothing(tmp_path: Path) -> None:
    contents = Contents(tmp_path, Limits(bytes=100, files=10, user_bytes=100, user_files=10))
    for _ in range(20):
        keeping = asyncio.ensure_future(keep(contents, "bob", b"x"))
        for _ in range(3):
            await asyncio.sleep(0)
        keeping.cancel()
        await asyncio.wait((keeping,))
    assert contents.used_bytes == len(list((tmp_path / "users").rglob(digest(b"x"))))
    assert list((tmp_path / "parts").iterdir()) == []


async def test_user_whose_name_is_a_path_stays_in_his_directory(tmp_path: Path) -> None:
    contents = Contents(tmp_path / "store", Limits(bytes=100, files=10, user_bytes=100, user_files=10))
    await keep(contents, "..", b"x")
    assert os.listdir(tmp_path) == ["store"]
    assert sorted(os.listdir(tmp_path / "store")) == ["parts", "users"]


async def test_manifests_are_remembered_up_to_so_many_bytes(tmp_path: Path) -> None:
    contents = Contents(tmp_path, Limits(bytes=10_000, files=10, user_bytes=10_000, user_files=10))
    encoded = [Manifest(files=(StagedFile(path=f"f{each}", size=0, sha256=digest(b"")),)).encode() for each in range(3)]
    digests = [await keep(contents, "bob", data) for data in encoded]
    manifests = Manifests(contents, most_bytes=2 * len(encoded[0]))
    kept = await manifests.get("bob", digests[0])
    await manifests.get("bob", digests[1])
    assert await manifests.get("bob", digests[0]) is kept
    await manifests.get("bob", digests[2])
    assert manifests.used_bytes == 2 * len(encoded[0])
    assert await manifests.get("bob", digests[0]) is kept


async def begin(contents: Contents, data: bytes = BIG, *, offset: int = 0, upto: int = PART) -> None:
    """Receive the beginning of a content, which then breaks off."""
    with contextlib.suppress(ConnectionError):
        async with contents.receive("bob", len(data), digest(data), part=digest(data), offset=offset) as receiver:
            await receiver.write(data[offset:upto])
            raise ConnectionError


async def go_on(contents: Contents, data: bytes, offset: int) -> None:
    async with contents.receive("bob", len(BIG), digest(BIG), part=digest(BIG), offset=offset) as receiver:
        await receiver.write(data)
        await receiver.finish()


def store(path: Path, wall: Callable[[], float] = lambda: 0.0) -> Contents:
    return Contents(path, Limits(bytes=LIMIT, files=10, user_bytes=LIMIT, user_files=10), wall=wall)


@pytest.mark.parametrize("restarted", [False, True])
async def test_content_goes_on_where_it_broke_off(tmp_path: Path, restarted: bool) -> None:
    contents = store(tmp_path)
    await begin(contents)
    contents = store(tmp_path) if restarted else contents
    assert contents.received("bob", digest(BIG)) == PART
    assert (contents.counted("bob"), contents.used_bytes) == ((PART, 1), PART)
    await go_on(contents, BIG[PART:], PART)
    assert (contents.counted("bob"), contents.used_bytes) == ((len(BIG), 1), len(BIG))
    assert [path.read_bytes() for path in (tmp_path / "users").rglob(digest(BIG))] == [BIG]
    assert list((tmp_path / "parts").iterdir()) == []


async def test_content_breaks_off_again_and_again(tmp_path: Path) -> None:
    contents = store(tmp_path)
    await begin(contents, upto=CHUNK_BYTES)
    await begin(contents, offset=CHUNK_BYTES, upto=PART)
    await go_on(contents, BIG[PART:], PART)
    assert await contents.sizes("bob", [digest(BIG)]) == [len(BIG)]


async def test_rest_of_another_content_is_refused_and_nothing_kept(tmp_path: Path) -> None:
    contents = store(tmp_path)
    await begin(contents)
    with pytest.raises(InvalidInput, match="did not arrive as it was sent"):
        await go_on(contents, b"x" * (len(BIG) - PART), PART)
    assert contents.received("bob", digest(BIG)) == contents.used_bytes == 0


async def test_more_than_there_is_can_not_be_gone_on_with(tmp_path: Path) -> None:
    contents = store(tmp_path)
    await begin(contents)
    with pytest.raises(Conflict, match="less of a file here than was said"):
        await go_on(contents, b"", PART + 1)
    assert contents.received("bob", digest(BIG)) == contents.used_bytes == PART


async def test_two_calls_that_send_one_content_do_not_meet(tmp_path: Path) -> None:
    contents = store(tmp_path)
    async with contents.receive("bob", len(BIG), digest(BIG), part=digest(BIG)) as receiver:
        await receiver.write(BIG[:PART])
        assert contents.received("bob", digest(BIG)) == 0
        await go_on(contents, BIG, 0)
        await receiver.write(BIG[PART:])
        await receiver.finish()
    assert [path.read_bytes() for path in (tmp_path / "users").rglob(digest(BIG))] == [BIG]
    assert contents.used_bytes == len(BIG)


async def test_part_that_nobody_goes_on_with_is_removed(tmp_path: Path) -> None:
    now = 0.0
    contents = store(tmp_path, lambda: now)
    await begin(contents)
    now += UNUSED_KEPT_S + 1
    await contents.sweep((), started=now)
    assert contents.used_bytes == 0
    assert list((tmp_path / "parts").iterdir()) == []
