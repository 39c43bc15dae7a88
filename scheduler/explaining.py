"""Explains jobs to people: what a waiting one misses, what would have to end, and when that may be.

Of others' jobs a user learns how many there are and when room is expected; an
operator learns which they are.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

import msgspec

from farbus.api.identity import Identity
from farbus.errors import FarbusError
from farbus.model.decision import Decision, PendingJob, Snapshot
from farbus.model.explanation import Explanation, Holder, Opening
from farbus.model.job import JobStatus
from farbus.model.states import JobState
from farbus.scheduler.decision_maker import FAULT
from farbus.scheduler.engine import Engine
from farbus.scheduler.openings import Found, Holding, find_opening, holding_of, left_behind
from farbus.scheduler.quotas import QUOTA
from farbus.scheduler.records import JobRecord, NodeRecord
from farbus.scheduler.words import describe_opening, describe_quota, explain_job

SEARCH_LIMIT_S = 10.0
"""Longest search for what would have to end; without an answer the rest is told."""
BATCH = 1_000
"""Jobs that are looked at before others have their turn on the event loop."""
MAX_KEPT = 256
"""Answers that are kept: who watches an explanation asks again and again."""
BY_LIMIT, BY_RUNS, BY_END = "time limit", "earlier runs", "it is ending"


def _lost(nodes: Iterable[NodeRecord]) -> list[str]:
    """Return the nodes that may come back: of one that was forgotten nobody waits for anything."""
    return sorted(record.name for record in nodes if not record.connected and record.node is not None)


class Explaining:
    """Answers to ``farbus explain``, on one engine."""

    def __init__(self, engine: Engine, now: Callable[[], float]) -> None:
        self._engine = engine
        self._now = now
        self._found: OrderedDict[str, tuple[int, Found | None]] = OrderedDict()
        # Each search takes up to twenty decisions: one at a time, so that rounds come between.
        self._searching = asyncio.Lock()

    async def explain(self, caller: Identity, status: JobStatus) -> Explanation:
        """Return why the job of ``status`` is where it is, as ``caller`` may know it."""
        machine = self._engine.machine
        waits = status.state is JobState.QUEUED
        ahead = machine.queue.position(status.job) if waits else 0
        connected = [record for _, record in sorted(machine.nodes.items()) if record.connected]
        lines = explain_job(
            status,
            ahead=ahead,
            nodes=len(connected),
            now=time.time(),
            expected_s=machine.inference.expected_s(status.job),
            cordons=machine.cordons(),
            troubled=[record for record in connected if record.trouble],
            lost=_lost(machine.nodes.values()) if connected else (),
        )
        opening = None
        phases = {miss.phase for miss in status.misses}
        if waits and QUOTA in phases:
            lines += describe_quota(status.job.user, self._jobs_of(status.job.user))
        elif status.job.attachment:
            # Its misses say it all: no round is asked where it goes.
            pass
        elif waits and connected and FAULT not in phases and not any(miss.permanent for miss in status.misses):
            try:
                async with asyncio.timeout(SEARCH_LIMIT_S):
                    found = await self._search(status)
            except (TimeoutError, FarbusError):
                lines += ("what would have to end was not found in time; ask again",)
            else:
                opening = self._opening(caller, found) if found is not None else None
                lines += describe_opening(opening, ahead=ahead)
        return Explanation(status=status, lines=lines, ahead=ahead, opening=opening)

    def _jobs_of(self, user: str) -> list[str]:
        """Return the jobs that count for a user's quota, those first that are expected to end first."""
        records = [each for each in self._engine.machine.jobs.values() if each.job.user == user]
        active = [each for each in records if each.state is not JobState.QUEUED]
        ends = {each.job.id: self.expected_end(each)[0] for each in active}
        return sorted(ends, key=lambda job_id: (float("inf") if ends[job_id] is None else ends[job_id], job_id))

    async def _search(self, status: JobStatus) -> Found | None:
        job = status.job
        async with self._searching:
            machine = self._engine.machine
            kept = self._found.get(job.id)
            if kept is not None and kept[0] == machine.generation:
                return kept[1]
            generation, snapshot = machine.generation, machine.snapshot(self._now())
            holdings = await self._holdings()
            found = await find_opening(self._ask, snapshot, job, holdings)
            self._found[job.id] = (generation, found)
            self._found.move_to_end(job.id)
            while len(self._found) > MAX_KEPT:
                self._found.popitem(last=False)
            return found

    async def _ask(self, snapshot: Snapshot, pending: tuple[PendingJob, ...]) -> Decision:
        known = self._engine.machine.inference.known
        # As a round would judge them: by what is known of their applications.
        return await self._engine.maker.decide(
            snapshot, tuple(msgspec.structs.replace(entry, profile=known(entry.job)) for entry in pending)
        )

    async def _holdings(self) -> list[Holding]:
        """Return what runs, in the order in which it is expected to end; what nobody knows of comes last."""
        machine = self._engine.machine
        holdings = [(0.0, held) for held in left_behind(machine)]
        for number, job_id in enumerate(sorted(machine.jobs)):
            if number % BATCH == BATCH - 1:
                await asyncio.sleep(0)
            record = machine.jobs.get(job_id)
            if record is None or record.state is JobState.QUEUED:
                continue
            held = holding_of(machine, record)
            if held.room or held.devices:
                ends_in_s, _ = self.expected_end(record)
                holdings.append((float("inf") if ends_in_s is None else ends_in_s, held))
        # Stable: what is expected at the same time stays in the order of ids.
        return [held for _, held in sorted(holdings, key=lambda each: each[0])]

    def expected_end(self, record: JobRecord) -> tuple[float | None, str]:
        """Return in how many seconds a job ends at the latest, or as its like did, and by what that is known."""
        if record.state is JobState.FINISHING:
            return 0.0, BY_END
        running = record.state is JobState.RUNNING
        ran_s = record.ran_before_s + self._now() - record.running_since if running else 0.0
        limit_s = record.job.time_limit_s or None
        if limit_s is not None:
            limit_s = max(0.0, record.limit_at - self._now() if record.limit_at else limit_s - ran_s)
        usual_s = self._engine.machine.inference.expected_s(record.job)
        if usual_s is not None and usual_s >= ran_s and (limit_s is None or usual_s - ran_s < limit_s):
            return usual_s - ran_s, BY_RUNS
        return (limit_s, BY_LIMIT) if limit_s is not None else (None, "")

    def _opening(self, caller: Identity, found: Found) -> Opening:
        machine = self._engine.machine
        holders, others, ends = [], 0, []
        for held in found.needed:
            record = machine.jobs.get(held.job)
            ends_in_s, basis = self.expected_end(record) if record is not None else (0.0, BY_END)
            ends.append(ends_in_s)
            owner = record.job.user if record is not None else ""
            if not caller.may_manage(owner):
                others += 1
                continue
            holders.append(
                Holder(
                    job=held.job,
                    user=owner,
                    nodes=held.nodes,
                    devices=tuple(sorted(held.devices)),
                    leases=held.leases,
                    ends_in_s=ends_in_s,
                    basis=basis,
                )
            )
        known = [each for each in ends if each is not None]
        return Opening(
            holders=tuple(holders),
            others=others,
            expected_s=max(known, default=0.0) if len(known) == len(ends) else None,
            placements=found.placement.tasks,
        )
