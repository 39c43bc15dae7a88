"""Several streams as one: what comes, in which order, and that none is left open."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import pytest

from farbus.api.merging import merged


class Stream:
    """Numbers that are told to it, until it is told to end."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[int | None] = asyncio.Queue()
        self.asked = 0
        self.closed = False

    def tell(self, *numbers: int | None) -> None:
        for number in numbers:
            self.told.put_nowait(number)

    async def numbers(self) -> AsyncGenerator[int, None]:
        try:
            while True:
                self.asked += 1
                number = await self.told.get()
                if number is None:
                    return
                if number < 0:
                    raise ValueError(number)
                yield number
        finally:
            self.closed = True


async def test_what_streams_give_comes_as_it_is_given_until_all_have_ended() -> None:
    one, other = Stream(), Stream()
    numbers = merged([one.numbers(), other.numbers()])
    other.tell(1)
    assert await anext(numbers) == 1
    one.tell(2, None)
    assert await anext(numbers) == 2
    other.tell(3, None)
    assert [number async for number in numbers] == [3]
    assert (one.closed, other.closed) == (True, True)


async def test_nothing_is_nothing() -> None:
    assert [number async for number in merged(list[AsyncGenerator[int, None]]())] == []


async def test_an_error_of_one_ends_all() -> None:
    one, other = Stream(), Stream()
    numbers = merged([one.numbers(), other.numbers()])
    one.tell(1, -1)
    assert await anext(numbers) == 1
    with pytest.raises(ValueError, match="-1"):
        await anext(numbers)
    assert (one.closed, other.closed) == (True, True)


async def test_who_goes_away_leaves_none_open() -> None:
    one, other = Stream(), Stream()
    async with contextlib.aclosing(merged([one.numbers(), other.numbers()])) as numbers:
        one.tell(1)
        assert await anext(numbers) == 1
    assert (one.closed, other.closed) == (True, True)


async def test_what_nobody_takes_is_not_asked_for() -> None:
    stream = Stream()
    stream.tell(*range(10), None)
    numbers = merged([stream.numbers()])
    assert await anext(numbers) == 0
    for _ in range(10):
        await asyncio.sleep(0)
    # One is in the middle, and one waits to be.
    assert stream.asked <= 3
    assert [number async for number in numbers] == list(range(1, 10))
