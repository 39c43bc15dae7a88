"""Many looks at a time, and never more than so many."""

from __future__ import annotations

import asyncio

import pytest

from farbus.linux.side_by_side import side_by_side


class Looks:
    """Looks that end in the order in which they are let."""

    def __init__(self) -> None:
        self.under_way: list[int] = []
        self.most = 0
        self.two = asyncio.Event()
        """Set once two are under way."""
        self.ended: list[int] = []
        self._may_end = {number: asyncio.Event() for number in range(5)}

    async def look(self, number: int) -> int:
        self.under_way.append(number)
        self.most = max(self.most, len(self.under_way))
        if self.most == 2:
            self.two.set()
        await self._may_end[number].wait()
        self.under_way.remove(number)
        self.ended.append(number)
        if number == 3:
            raise OSError("three is broken")
        return 10 * number

    def let(self, *numbers: int) -> None:
        for number in numbers:
            self._may_end[number].set()


async def test_so_many_are_looked_at_at_a_time_and_found_in_their_order() -> None:
    looks = Looks()
    asking = asyncio.ensure_future(side_by_side(looks.look, [0, 1, 2, 4], most=2))
    await looks.two.wait()
    assert looks.under_way == [0, 1]
    looks.let(*range(5))
    assert await asking == [0, 10, 20, 40]
    assert looks.most == 2


async def test_what_fails_keeps_it_from_none_of_the_others() -> None:
    looks = Looks()
    looks.let(*range(5))
    with pytest.raises(OSError, match="three is broken"):
        await side_by_side(looks.look, [3, 4, 0, 1], most=2)
    assert sorted(looks.ended) == [0, 1, 3, 4]


async def test_what_is_looked_at_ends_with_who_asks() -> None:
    looks = Looks()
    asking = asyncio.ensure_future(side_by_side(looks.look, range(5), most=2))
    await looks.two.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
