"""Flavour vectors: what tells which groups of a job go together, and which are instead of which.

HIRE (Bloecher et al., ASPLOS 2021), sections 4.3 and 5.3.  A vector is a text
with one character for each decision of the job: ``1`` and ``0`` for yes and no
in a group's vector, ``x`` where the decision does not concern the group.  The
job's own vector begins as ``x`` throughout; choosing a group writes that
group's decisions into it.  A group is *decided* when all of its decisions are
those of the job, *out* when one contradicts, else *undecided*.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

MAX_DECISIONS = 64
"""Decisions of a job: one for each group that a job may have."""

MAX_FLAVOURS = 64
"""Different ways in which the decisions of one job may end: a round tries each of them at most once."""

MAX_STATES = 4_096
"""Half-decided states of one job that are looked at: six independent decisions of two ways each have 729."""

_OPEN = "x"


class Standing(enum.Enum):
    """Where a group stands, given what is decided of its job."""

    DECIDED = "decided"
    UNDECIDED = "undecided"
    OUT = "out"


def is_vector(text: str) -> bool:
    """Say whether ``text`` is a vector of at most :data:`MAX_DECISIONS` decisions."""
    return len(text) <= MAX_DECISIONS and not set(text) - {"0", "1", _OPEN}


def undecided(vectors: Iterable[str]) -> str:
    """Return the vector with which a job of groups with ``vectors`` begins; shorter ones are padded with ``x``."""
    return _OPEN * max((len(vector) for vector in vectors), default=0)


def standing(vector: str, decided: str) -> Standing:
    """Return where a group of ``vector`` stands in a job of which ``decided`` is decided."""
    pairs = [(own, job) for own, job in zip(vector, decided, strict=False) if own != _OPEN]
    if any(job not in (own, _OPEN) for own, job in pairs):
        return Standing.OUT
    return Standing.UNDECIDED if any(job == _OPEN for _, job in pairs) else Standing.DECIDED


def choose(vector: str, decided: str) -> str:
    """Return what is decided after a group of ``vector``, which is not out, was chosen."""
    padded = vector.ljust(len(decided), _OPEN)
    return "".join(job if own == _OPEN else own for own, job in zip(padded, decided, strict=True))


def options(vectors: Sequence[str], decided: str) -> tuple[str, ...]:
    """Return what may be decided next, one step from ``decided``; empty when no group is undecided any more."""
    steps = (choose(vector, decided) for vector in vectors if standing(vector, decided) is Standing.UNDECIDED)
    return tuple(dict.fromkeys(steps))


def flavours(vectors: Sequence[str]) -> tuple[str, ...]:
    """Return all ways in which the decisions may end, in order; empty where no group has a decision.

    Which decision was made first does not matter, only what is decided at the
    end.  Where there are too many the answer is longer than :data:`MAX_FLAVOURS`, whatever it holds.
    """
    if not any(set(vector) - {_OPEN} for vector in vectors):
        return ()
    start = undecided(vectors)
    seen, waiting, ends = {start}, [start], set()
    while waiting:
        decided = waiting.pop()
        steps = options(vectors, decided)
        if not steps:
            ends.add(decided)
        if len(ends) > MAX_FLAVOURS or len(seen) > MAX_STATES:
            return (start,) * (MAX_FLAVOURS + 1)
        waiting += [step for step in steps if step not in seen]
        seen.update(steps)
    return tuple(sorted(ends))
