"""Many looks at the machine at a time, and never more than so many."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


async def side_by_side(look: Callable[[T], Awaitable[R]], things: Iterable[T], *, most: int) -> list[R]:
    """Return what ``look`` finds of each of the things, in their order; it looks at ``most`` of them at a time.

    One at which it fails keeps it from none of the others: the first error is raised once all have been looked at.
    """
    turns = asyncio.Semaphore(most)

    async def look_at(thing: T) -> R:
        async with turns:
            return await look(thing)

    found: list[R] = []
    for result in await asyncio.gather(*map(look_at, things), return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
        found.append(result)
    return found
