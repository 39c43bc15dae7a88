"""Why awards went where they did, as numbers: made into words where somebody asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from farbus.scheduler.phases.tables import Integers, Table

REASON = np.dtype([(name, np.int64) for name in ("text", "place", "cost", "other", "other_cost")])
"""Why something went to ``place``: a row of texts, into which place, cost, and the next best of both are put."""


@dataclass(frozen=True, slots=True)
class Reasons:
    """Why awards went where they did: a table of ``REASON``, and the texts that it goes into (:meth:`str.format`)."""

    texts: tuple[str, ...]
    table: Table

    @staticmethod
    def joined(parts: Sequence[Reasons]) -> Reasons:
        """Return the reasons of several tables as one."""
        texts: list[str] = []
        tables = [np.zeros(0, REASON)]
        for part in parts:
            table = part.table.copy()
            table["text"] += len(texts)
            texts += part.texts
            tables.append(table)
        return Reasons(tuple(texts), np.concatenate(tables))

    def words(self, names: Sequence[str]) -> list[str]:
        """Return all of them in words; places are rows of ``names``."""
        texts = [text.format for text in self.texts]
        rows = zip(*(self.table[name].tolist() for name in REASON.names or ()), strict=True)
        return [
            texts[text](names[place], f"{cost / 1000:g}", names[other], f"{dearer / 1000:g}")
            for text, place, cost, other, dearer in rows
        ]


def literal(text: str) -> str:
    """Return a text that stands for itself among those of :class:`Reasons`."""
    return text.replace("{", "{{").replace("}", "}}")


def told(kinds: Integers, text: Callable[[int], str], **columns: Integers) -> Reasons:
    """Return the reasons of awards of some ``kinds``, each of which has its ``text``."""
    table = np.zeros(len(kinds), REASON)
    for name, column in columns.items():
        table[name] = column
    different, table["text"] = np.unique(kinds, return_inverse=True)
    return Reasons(tuple(text(kind) for kind in different.tolist()), table)
