"""Several streams as one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterable
from typing import TypeVar

T = TypeVar("T")


class _End:
    """One of the streams has ended, by an error or by itself."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error


async def merged(streams: Iterable[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """Yield what several streams yield, as it comes, until all of them have ended.

    What they have given and nobody has taken yet is one item, and one of each that waits to be taken.  Raises the first
    error of theirs.  However this ends, they are closed by then.
    """
    given: asyncio.Queue[T | _End] = asyncio.Queue(1)
    pumps = [asyncio.create_task(_pump(stream, given), name="stream") for stream in streams]
    try:
        left = len(pumps)
        while left:
            item = await given.get()
            if not isinstance(item, _End):
                yield item
                continue
            if item.error is not None:
                raise item.error
            left -= 1
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(stream: AsyncGenerator[T, None], given: asyncio.Queue[T | _End]) -> None:
    error: Exception | None = None
    try:
        async with contextlib.aclosing(stream):
            async for item in stream:
                await given.put(item)
    except Exception as problem:
        error = problem
    await given.put(_End(error))
