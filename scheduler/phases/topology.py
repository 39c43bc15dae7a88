"""The tree of racks, and how nearness spreads along it (HIRE, appendix A).

The name of a rack is its path: ``pod0/rack3`` is below ``pod0``, which is
below the root, whose name is empty.  A node sits at the place that its rack
names, so a switch that serves a pod says ``pod0``.  Servers and in-network
devices share this tree: it is both the network and its *shadow*, and what is
known of a place in one holds for the other.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

SEPARATOR = "/"


class Tree:
    """Places of a topology: N of them, the root is 0, and parents come before their children."""

    def __init__(self, racks: tuple[str, ...]) -> None:
        paths = {""}
        for rack in racks:
            parts = [part for part in rack.split(SEPARATOR) if part]
            paths |= {SEPARATOR.join(parts[:length]) for length in range(1, len(parts) + 1)}
        self.paths = sorted(paths, key=lambda path: (path.count(SEPARATOR) + bool(path), path))
        self.index = {path: number for number, path in enumerate(self.paths)}
        self.parent = np.array([self.index[path.rpartition(SEPARATOR)[0]] for path in self.paths], np.int64)
        self.parent[0] = -1
        self.depth = np.array([path.count(SEPARATOR) + bool(path) for path in self.paths], np.int64)
        self.children: list[list[int]] = [[] for _ in self.paths]
        for place, parent in enumerate(self.parent.tolist()):
            if parent >= 0:
                self.children[parent].append(place)
        self.of_rack = np.array(
            [self.index[SEPARATOR.join(part for part in rack.split(SEPARATOR) if part)] for rack in racks], np.int64
        )
        """The place of each rack, by its number."""

    def neighbours(self, place: int) -> list[int]:
        """Return the places one hop away."""
        parent = int(self.parent[place])
        return ([parent] if parent >= 0 else []) + self.children[place]

    def places(self, rack: Integers) -> Integers:
        """Return the place of each node, given the number of its rack; the root for a negative one."""
        if not len(self.of_rack):
            return np.zeros(len(rack), np.int64)
        return np.where(rack >= 0, self.of_rack[rack.clip(min=0)], 0)

    def totals(self, places: Integers, values: Integers) -> Integers:
        """Return, shape (N, ...), the sums of ``values`` of all nodes at or below each place."""
        sums = np.zeros((len(self.paths), *values.shape[1:]), values.dtype)
        np.add.at(sums, places, values)
        for place in range(len(self.paths) - 1, 0, -1):
            sums[self.parent[place]] += sums[place]
        return sums

    def gain(self, starts: list[int], gamma: int, decay: int) -> Integers:
        """Return the in-network locality gain of each place: algorithm 1, once for each of ``starts``.

        A task's own place gains ``gamma``, its neighbours ``gamma // decay``, and so on until nothing is left.
        """
        gained = np.zeros(len(self.paths), np.int64)
        for start in starts:
            visited: set[int] = set()
            visit, left = {start}, gamma
            while left > 0 and visit:
                following: set[int] = set()
                for place in visit:
                    gained[place] += left
                    following.update(self.neighbours(place))
                visited |= visit
                visit = following - visited
                left //= decay
        return gained

    def absence(self, places: Integers, running: Integers, total: int) -> Floats:
        """Return for each place which part of a group does not run there: equation 6.

        ``places`` are those of the servers, ``running`` counts the group's
        tasks on each, ``total`` is the size of the group.  A place is the mean
        of what is directly below it; where nothing is, all of the group is absent.
        """
        sums = np.zeros(len(self.paths), np.float64)
        count = np.zeros(len(self.paths), np.int64)
        np.add.at(sums, places, 1 - running / max(total, 1))
        np.add.at(count, places, 1)
        for place in range(len(self.paths) - 1, -1, -1):
            value = sums[place] / count[place] if count[place] else 1.0
            sums[place] = value
            parent = self.parent[place]
            # A place without servers says nothing about where servers are.
            if parent >= 0 and count[place]:
                sums[parent] += value
                count[parent] += 1
        return sums


@functools.lru_cache(maxsize=16)
def tree_of(racks: tuple[str, ...]) -> Tree:
    """Return the tree of racks with these names."""
    return Tree(racks)
