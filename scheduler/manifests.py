"""Lists of the files that jobs take along, read once for many tasks."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from farbus.model.staging import MAX_MANIFEST_BYTES, Manifest, check_digest
from farbus.scheduler.contents import Contents, Key, user_directory

CACHE_BYTES = 64 * 2**20
"""Manifests that are remembered, as long as they are in JSON: four of the largest, or some thousand ordinary ones.
In memory each takes about three times as much."""


class Listed:
    """A manifest, and what is asked of it most often."""

    def __init__(self, manifest: Manifest, size: int) -> None:
        self.files = manifest.files
        self.total_bytes = manifest.total_bytes
        self.digests = frozenset(file.sha256 for file in manifest.files)
        self.size = size


class Manifests:
    """The manifests in a store of contents; those that were asked for last are remembered, ``most_bytes`` of them."""

    def __init__(self, contents: Contents, *, most_bytes: int = CACHE_BYTES) -> None:
        self._contents = contents
        self._most_bytes = most_bytes
        self._listed: OrderedDict[Key, Listed] = OrderedDict()
        self._reading = asyncio.Lock()
        """So that a thousand tasks that begin at once have one manifest read once."""
        self.used_bytes = 0

    async def get(self, user: str, digest: str) -> Listed:
        """Return a manifest of a user's; raise :class:`NotFound` or :class:`InvalidInput`."""
        key = (user_directory(user), check_digest(digest))
        if (listed := self._recall(key)) is not None:
            return listed
        async with self._reading:
            if (listed := self._recall(key)) is not None:
                return listed
            data = await self._contents.read_whole(user, digest, most_bytes=MAX_MANIFEST_BYTES)
            listed = await asyncio.to_thread(_decode, data)
            self._listed[key] = listed
            self.used_bytes += listed.size
            while self.used_bytes > self._most_bytes:
                self.used_bytes -= self._listed.popitem(last=False)[1].size
            return listed

    def _recall(self, key: Key) -> Listed | None:
        if (listed := self._listed.get(key)) is not None:
            self._listed.move_to_end(key)
        return listed


def _decode(data: bytes) -> Listed:
    return Listed(Manifest.decode(data), len(data))
