"""The ledger: jobs, leases, moves of devices, volumes, epochs and the scheduler's term, surviving kill -9.

The only truth about who may use what.  Jobs that have not ended and leases
that are not released are loaded whole at the start; the others stay in the
file, up to :data:`KEEP_ENDED`, for listings.  Each task of a job that lives
has a row of its own, so that what happens to it is written at the same cost
however many the job has; one that has ended has them all in its own.  The
secret of a lease is erased with its release.
"""

from __future__ import annotations

import concurrent.futures
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from farbus.errors import Conflict
from farbus.model.device import Device
from farbus.model.job import Job, JobStatus
from farbus.model.lease import Lease, LeaseStatus
from farbus.model.node import Node
from farbus.model.operation import Cordon
from farbus.model.profile import ApplicationProfile, ObservedRun
from farbus.model.states import JOB_STATES, JobState, LeaseState
from farbus.model.value import Value
from farbus.scheduler.events import (
    ForgetNode,
    ForgetProfile,
    Persist,
    PersistChassis,
    PersistCordon,
    PersistDevice,
    PersistJob,
    PersistLease,
    PersistMove,
    PersistNode,
    PersistProfile,
    PersistRun,
    PersistTasks,
    PersistVolume,
    PersistWaits,
)
from farbus.scheduler.inference import WINDOW
from farbus.scheduler.move_records import StoredMove
from farbus.scheduler.records import StoredProgress, job_status
from farbus.scheduler.runs import TaskRun, order_of
from farbus.scheduler.store import Store
from farbus.scheduler.volume_records import StoredVolume

LEDGER_NAME = "ledger.db"
"""Its file in the directory."""
KEEP_ENDED = 100_000
"""Ended jobs, and released leases, that are kept for listings."""
PRUNE_EVERY = 10_000
"""Jobs between two looks for what is too old to keep."""
KEEP_RUNS = 32_768
"""Observed runs that are kept, of some hundred bytes each: a scheduler learns from all of them when it starts."""
RUNS_OF_ONE = 4 * WINDOW
"""Of one application of one user: as many as count in four flavours."""
LIST_LIMIT = 10_000
"""Ended jobs, or released leases, that one listing shows: the latest."""

_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO meta VALUES ('term', 0);
CREATE TABLE jobs (
    seq INTEGER PRIMARY KEY, user TEXT NOT NULL, live INTEGER NOT NULL, state TEXT NOT NULL,
    spec BLOB NOT NULL, progress BLOB NOT NULL, rounds_waited INTEGER NOT NULL DEFAULT 0);
CREATE INDEX jobs_live ON jobs (seq) WHERE live;
CREATE INDEX jobs_ended ON jobs (user, seq) WHERE NOT live;
CREATE TABLE leases (
    seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, user TEXT NOT NULL, live INTEGER NOT NULL, state TEXT NOT NULL,
    endpoint TEXT NOT NULL, prepared INTEGER NOT NULL, spec BLOB NOT NULL);
CREATE INDEX leases_live ON leases (seq) WHERE live;
CREATE INDEX leases_released ON leases (user, seq) WHERE NOT live;
CREATE TABLE devices (id TEXT PRIMARY KEY, node TEXT NOT NULL, epoch INTEGER NOT NULL, device BLOB NOT NULL)
    WITHOUT ROWID;
CREATE TABLE nodes (name TEXT PRIMARY KEY, seen_at REAL NOT NULL, node BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE cordons (kind TEXT NOT NULL, name TEXT NOT NULL, cordon BLOB NOT NULL, PRIMARY KEY (kind, name))
    WITHOUT ROWID;
"""

_PROFILES = """
CREATE TABLE runs (seq INTEGER PRIMARY KEY, user TEXT NOT NULL, application TEXT NOT NULL, run BLOB NOT NULL);
CREATE INDEX runs_of ON runs (application, user);
CREATE TABLE profiles (application TEXT NOT NULL, user TEXT NOT NULL, profile BLOB NOT NULL,
    PRIMARY KEY (application, user)) WITHOUT ROWID
"""
_SCHEMA += _PROFILES

_MOVES = """
CREATE TABLE moves (
    seq INTEGER PRIMARY KEY, device TEXT NOT NULL, live INTEGER NOT NULL, state TEXT NOT NULL, move BLOB NOT NULL);
CREATE UNIQUE INDEX moves_live ON moves (device) WHERE live;
CREATE TABLE chassis (name TEXT PRIMARY KEY, term INTEGER NOT NULL) WITHOUT ROWID
"""
_SCHEMA += ";" + _MOVES

_VOLUMES = """
CREATE TABLE volumes (
    seq INTEGER PRIMARY KEY, name TEXT NOT NULL, live INTEGER NOT NULL, state TEXT NOT NULL, volume BLOB NOT NULL);
CREATE UNIQUE INDEX volumes_live ON volumes (name) WHERE live
"""
_SCHEMA += ";" + _VOLUMES

_TASKS = """
CREATE TABLE tasks (job INTEGER NOT NULL, task TEXT NOT NULL, run BLOB NOT NULL, PRIMARY KEY (job, task)) WITHOUT ROWID
"""
_SCHEMA += ";" + _TASKS

_UPGRADES = (
    """
ALTER TABLE jobs ADD COLUMN rounds_waited INTEGER NOT NULL DEFAULT 0;
CREATE TABLE cordons (kind TEXT NOT NULL, name TEXT NOT NULL, cordon BLOB NOT NULL, PRIMARY KEY (kind, name))
    WITHOUT ROWID
""",
    _PROFILES,
    _MOVES,
    _VOLUMES,
    # JSON that the ledger has is text, in blobs.
    f"""
{_TASKS};
INSERT INTO tasks SELECT seq, json_extract(value, '$.placement.task'), CAST(value AS BLOB)
    FROM jobs, json_each(CAST(progress AS TEXT), '$.runs') WHERE live;
UPDATE jobs SET progress = CAST(json_remove(CAST(progress AS TEXT), '$.runs') AS BLOB) WHERE live
""",  # noqa: S608 - the names are ours
)
"""What makes each older format the next one, beginning with format 1."""


class Contents(Value, frozen=True, kw_only=True):
    """What a scheduler takes over when it starts."""

    jobs: list[tuple[Job, JobState, StoredProgress]]
    leases: list[tuple[Lease, LeaseState, str, bool]]
    devices: list[tuple[str, str, int, Device | None]]
    nodes: list[tuple[Node, float]]
    cordons: list[Cordon]
    runs: list[ObservedRun]
    """In the order in which they ended."""
    profiles: list[ApplicationProfile]
    """Those that operators have set."""
    next_job: int
    moves: list[StoredMove] = []
    """Those that hold their devices."""
    chassis: list[tuple[str, int]] = []
    """Each with the term in which somebody was last named to serve it."""
    next_move: int = 1
    volumes: list[StoredVolume] = []
    """Those that take room."""
    next_volume: int = 1


class Ledger:
    """The open ledger of ``directory``; opening it begins a new term.

    Raises :class:`Conflict` while another scheduler has it,
    :class:`FarbusError` when it is damaged or can't be written.
    """

    def __init__(self, directory: str | Path) -> None:
        self._store = Store(Path(directory) / LEDGER_NAME, _SCHEMA, upgrades=_UPGRADES)
        self._since_prune = 0
        try:
            self.term = self._store.submit(_begin_term).result()
            self._store.guard(self._check_term)
            self._store.submit(_prune_runs).result()
        except BaseException:
            self._store.close()
            raise

    def _check_term(self, connection: sqlite3.Connection) -> None:
        # The lock already keeps a second scheduler out; the term also holds
        # where locks don't (a network file system, a copied directory).
        (term,) = connection.execute("SELECT value FROM meta WHERE key = 'term'").fetchone()
        if term != self.term:
            raise Conflict(f"another scheduler took the ledger over: its term is {term}, this one's is {self.term}")

    def close(self) -> None:
        """Commit what was submitted and let go of the file."""
        self._store.close()

    def check_term(self) -> concurrent.futures.Future[None]:
        """See that no other scheduler has taken the ledger over; else the future raises :class:`Conflict`."""
        return self._store.read(lambda _: None)

    def load(self) -> Contents:
        """Return what lives; what is too old to keep goes while that is taken over."""
        contents = self._store.read(_load).result()
        self._store.submit(_prune)
        return contents

    def write(self, effects: Iterable[Persist]) -> concurrent.futures.Future[None]:
        """Write ``effects``, all or none; the future is resolved once they are on the disk."""
        jobs, tasks, batch = apart(effects)
        self._since_prune += sum(job.new for job, _ in jobs)
        prune = self._since_prune >= PRUNE_EVERY
        if prune:
            self._since_prune = 0

        def work(connection: sqlite3.Connection) -> None:
            # First: one that ends in this commit has them in its own row.
            _write_tasks(connection, tasks)
            for job, progress in jobs:
                _write_job(connection, job, progress)
            for effect in batch:
                _WRITERS[type(effect)](connection, effect)
            if prune:
                _prune(connection)
                _prune_runs(connection)

        return self._store.submit(work)

    def job(self, job_id: str) -> concurrent.futures.Future[JobStatus | None]:
        """Find a job, ended or not."""
        number = job_number(job_id)

        def work(connection: sqlite3.Connection) -> JobStatus | None:
            row = connection.execute("SELECT state, spec, progress FROM jobs WHERE seq = ?", (number,)).fetchone()
            return _status(row) if row is not None else None

        return self._store.read(work)

    def ended_jobs(self, *, user: str | None) -> concurrent.futures.Future[tuple[JobStatus, ...]]:
        """Return the latest ended jobs, oldest first: of ``user``, or everybody's for None."""
        return self._store.read(
            lambda connection: tuple(_status(row) for row in _latest(connection, "jobs", "state, spec, progress", user))
        )

    def released_leases(self, *, user: str | None) -> concurrent.futures.Future[tuple[LeaseStatus, ...]]:
        """Return the latest released leases, oldest first: of ``user``, or everybody's for None."""
        return self._store.read(
            lambda connection: tuple(
                LeaseStatus(
                    lease=_LEASE.decode(spec).without_secret(),
                    state=LeaseState(state),
                    expires_in_s=0.0,
                    endpoint=endpoint,
                )
                for state, endpoint, spec in _latest(connection, "leases", "state, endpoint, spec", user)
            )
        )

    def move(self, move_id: str) -> concurrent.futures.Future[StoredMove | None]:
        """Find a move, ended or not."""
        number = job_number(move_id, prefix="m")

        def work(connection: sqlite3.Connection) -> StoredMove | None:
            row = connection.execute("SELECT move FROM moves WHERE seq = ?", (number,)).fetchone()
            return _MOVE.decode(row[0]) if row is not None else None

        return self._store.read(work)

    def ended_moves(self) -> concurrent.futures.Future[tuple[StoredMove, ...]]:
        """Return the latest moves that hold their devices no more, oldest first."""
        return self._store.read(
            lambda connection: tuple(_MOVE.decode(move) for (move,) in _latest(connection, "moves", "move", None))
        )


def job_id_of(number: int) -> str:
    """Return the id of the ``number``-th job of the ledger."""
    return f"j{number}"


def job_number(job_id: str, *, prefix: str = "j") -> int:
    """Return the number in a job's id, or with ``prefix`` in another's, or -1, which none has."""
    digits = job_id[1:]
    valid = job_id[:1] == prefix and digits.isascii() and digits.isdigit() and len(digits) <= 18
    return int(digits) if valid else -1


_JOB = msgspec.json.Decoder(Job)
_LEASE = msgspec.json.Decoder(Lease)
_PROGRESS = msgspec.json.Decoder(StoredProgress)
_TASK = msgspec.json.Decoder(TaskRun)
_DEVICE = msgspec.json.Decoder(Device)
_NODE = msgspec.json.Decoder(Node)
_CORDON = msgspec.json.Decoder(Cordon)
_RUN = msgspec.json.Decoder(ObservedRun)
_PROFILE = msgspec.json.Decoder(ApplicationProfile)
_MOVE = msgspec.json.Decoder(StoredMove)
_VOLUME = msgspec.json.Decoder(StoredVolume)


def _begin_term(connection: sqlite3.Connection) -> int:
    (term,) = connection.execute("UPDATE meta SET value = value + 1 WHERE key = 'term' RETURNING value").fetchone()
    return int(term)


def _load(connection: sqlite3.Connection) -> Contents:
    tasks: defaultdict[int, list[TaskRun]] = defaultdict(list)
    for number, task in connection.execute("SELECT job, run FROM tasks"):
        tasks[number].append(_TASK.decode(task))
    jobs = [
        (_JOB.decode(spec), JobState(state), _whole(_PROGRESS.decode(progress), rounds_waited, tasks.get(number, ())))
        for number, state, spec, progress, rounds_waited in connection.execute(
            "SELECT seq, state, spec, progress, rounds_waited FROM jobs WHERE live ORDER BY seq"
        )
    ]
    leases = [
        (_LEASE.decode(spec), LeaseState(state), endpoint, bool(prepared))
        for state, endpoint, prepared, spec in connection.execute(
            "SELECT state, endpoint, prepared, spec FROM leases WHERE live ORDER BY seq"
        )
    ]
    devices = [
        (device_id, node, epoch, _DEVICE.decode(device) if device else None)
        for device_id, node, epoch, device in connection.execute("SELECT id, node, epoch, device FROM devices")
    ]
    nodes = [(_NODE.decode(node), seen_at) for node, seen_at in connection.execute("SELECT node, seen_at FROM nodes")]
    cordons = [_CORDON.decode(cordon) for (cordon,) in connection.execute("SELECT cordon FROM cordons")]
    runs = [_RUN.decode(run) for (run,) in connection.execute("SELECT run FROM runs ORDER BY seq")]
    profiles = [_PROFILE.decode(profile) for (profile,) in connection.execute("SELECT profile FROM profiles")]
    moves = [_MOVE.decode(move) for (move,) in connection.execute("SELECT move FROM moves WHERE live ORDER BY seq")]
    chassis = list(connection.execute("SELECT name, term FROM chassis ORDER BY name"))
    volumes = [
        _VOLUME.decode(each) for (each,) in connection.execute("SELECT volume FROM volumes WHERE live ORDER BY seq")
    ]
    (last_volume,) = connection.execute("SELECT COALESCE(MAX(seq), 0) FROM volumes").fetchone()
    (last,) = connection.execute("SELECT COALESCE(MAX(seq), 0) FROM jobs").fetchone()
    (last_move,) = connection.execute("SELECT COALESCE(MAX(seq), 0) FROM moves").fetchone()
    return Contents(
        jobs=jobs,
        leases=leases,
        devices=devices,
        nodes=nodes,
        cordons=cordons,
        runs=runs,
        profiles=profiles,
        next_job=last + 1,
        moves=moves,
        chassis=chassis,
        next_move=last_move + 1,
        volumes=volumes,
        next_volume=last_volume + 1,
    )


def _whole(progress: StoredProgress, rounds_waited: int, tasks: Iterable[TaskRun]) -> StoredProgress:
    """Put what is written by itself, more often than the rest, into the progress of a job that lives."""
    progress.rounds_waited = max(progress.rounds_waited, rounds_waited)
    progress.runs = sorted(tasks, key=order_of)
    return progress


def _prune(connection: sqlite3.Connection) -> None:
    for table in ("jobs", "leases", "moves", "volumes"):
        connection.execute(
            f"DELETE FROM {table} WHERE NOT live AND seq <= "  # noqa: S608 - the names are ours
            f"(SELECT seq FROM {table} WHERE NOT live ORDER BY seq DESC LIMIT 1 OFFSET {KEEP_ENDED})"
        )


def _prune_runs(connection: sqlite3.Connection) -> None:
    """Keep of each application the runs that may count, and of all the latest."""
    connection.execute(
        "DELETE FROM runs WHERE seq IN (SELECT seq FROM (SELECT seq, ROW_NUMBER() OVER "
        "(PARTITION BY application, user ORDER BY seq DESC) AS place FROM runs) WHERE place > ?)",
        (RUNS_OF_ONE,),
    )
    connection.execute("DELETE FROM runs WHERE seq <= (SELECT COALESCE(MAX(seq), 0) FROM runs) - ?", (KEEP_RUNS,))


def _latest(connection: sqlite3.Connection, table: str, columns: str, user: str | None) -> list[Any]:
    by_user = "" if user is None else "AND user = ?"
    rows = connection.execute(
        f"SELECT {columns} FROM {table} WHERE NOT live {by_user} "  # noqa: S608 - the names are ours
        f"ORDER BY seq DESC LIMIT {LIST_LIMIT}",
        () if user is None else (user,),
    ).fetchall()
    return rows[::-1]


def _status(row: tuple[str, bytes, bytes]) -> JobStatus:
    state, spec, progress = row
    decoded = _PROGRESS.decode(progress)
    return job_status(_JOB.decode(spec), JobState(state), decoded, decoded.runs)


Tasks = dict[tuple[int, str], bytes]
"""Tasks by the number of their job and their name, as JSON; empty for one that is no more."""


def apart(effects: Iterable[Persist]) -> tuple[list[tuple[PersistJob, bytes]], Tasks, list[Persist]]:
    """Return jobs with their progress as it is now and tasks as they are now, each once, and the other effects."""
    jobs: dict[str, PersistJob] = {}
    tasks: Tasks = {}
    others: list[Persist] = []
    for effect in effects:
        if isinstance(effect, PersistJob):
            before = jobs.get(effect.job.id)
            is_new = effect.new or (before is not None and before.new)
            jobs[effect.job.id] = effect if effect.new == is_new else replace(effect, new=is_new)
        elif isinstance(effect, PersistTasks):
            number = job_number(effect.job_id)
            tasks.update(((number, task), run) for task, run in effect.tasks)
        else:
            others.append(effect)
    return [(job, msgspec.json.encode(job.progress)) for job in jobs.values()], tasks, others


def _write_tasks(connection: sqlite3.Connection, tasks: Tasks) -> None:
    connection.executemany(
        "INSERT INTO tasks (job, task, run) VALUES (?, ?, ?) ON CONFLICT (job, task) DO UPDATE SET run = excluded.run",
        [(*key, run) for key, run in tasks.items() if run],
    )
    connection.executemany(
        "DELETE FROM tasks WHERE job = ? AND task = ?", [key for key, run in tasks.items() if not run]
    )


def _write_job(connection: sqlite3.Connection, effect: PersistJob, progress: bytes) -> None:
    live = not JOB_STATES.is_final(effect.state)
    number = job_number(effect.job.id)
    if effect.new:
        connection.execute(
            "INSERT INTO jobs (seq, user, live, state, spec, progress) VALUES (?, ?, ?, ?, ?, ?)",
            (number, effect.job.user, live, effect.state.value, msgspec.json.encode(effect.job), progress),
        )
    else:
        connection.execute(
            "UPDATE jobs SET live = ?, state = ?, progress = ? WHERE seq = ?",
            (live, effect.state.value, progress, number),
        )
    if not live:
        connection.execute("DELETE FROM tasks WHERE job = ?", (number,))


def _write_lease(connection: sqlite3.Connection, effect: PersistLease) -> None:
    live = effect.state is not LeaseState.RELEASED
    lease = effect.lease if live else effect.lease.without_secret()
    connection.execute(
        "INSERT INTO leases (id, user, live, state, endpoint, prepared, spec) VALUES (?, ?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (id) DO UPDATE SET live = excluded.live, state = excluded.state, "
        "endpoint = excluded.endpoint, prepared = excluded.prepared, spec = excluded.spec",
        (
            lease.id,
            lease.user,
            live,
            effect.state.value,
            effect.endpoint,
            effect.prepared,
            msgspec.json.encode(lease),
        ),
    )


def _write_device(connection: sqlite3.Connection, effect: PersistDevice) -> None:
    connection.execute(
        "INSERT INTO devices (id, node, epoch, device) VALUES (?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
        "node = excluded.node, epoch = MAX(epoch, excluded.epoch), device = excluded.device",
        (effect.id, effect.node, effect.epoch, effect.device),
    )


def _write_node(connection: sqlite3.Connection, effect: PersistNode) -> None:
    connection.execute(
        "INSERT INTO nodes (name, seen_at, node) VALUES (?, ?, ?) "
        "ON CONFLICT (name) DO UPDATE SET seen_at = excluded.seen_at, node = excluded.node",
        (effect.node.name, effect.seen_at, msgspec.json.encode(effect.node)),
    )


def _forget_node(connection: sqlite3.Connection, effect: ForgetNode) -> None:
    connection.execute("DELETE FROM nodes WHERE name = ?", (effect.name,))


def _write_cordon(connection: sqlite3.Connection, effect: PersistCordon) -> None:
    if effect.cordon is None:
        connection.execute("DELETE FROM cordons WHERE kind = ? AND name = ?", (effect.kind.value, effect.name))
    else:
        connection.execute(
            "INSERT OR REPLACE INTO cordons (kind, name, cordon) VALUES (?, ?, ?)",
            (effect.kind.value, effect.name, msgspec.json.encode(effect.cordon)),
        )


def _write_waits(connection: sqlite3.Connection, effect: PersistWaits) -> None:
    connection.executemany(
        "UPDATE jobs SET rounds_waited = ? WHERE seq = ?",
        [(rounds, job_number(job_id)) for job_id, rounds in effect.rounds],
    )


def _write_move(connection: sqlite3.Connection, effect: PersistMove) -> None:
    move = effect.move
    connection.execute(
        "INSERT INTO moves (seq, device, live, state, move) VALUES (?, ?, ?, ?, ?) ON CONFLICT (seq) DO UPDATE SET "
        "live = excluded.live, state = excluded.state, move = excluded.move",
        (job_number(move.id, prefix="m"), move.device, move.holds, move.state.value, msgspec.json.encode(move)),
    )


def _write_volume(connection: sqlite3.Connection, effect: PersistVolume) -> None:
    volume = effect.volume
    connection.execute(
        "INSERT INTO volumes (seq, name, live, state, volume) VALUES (?, ?, ?, ?, ?) ON CONFLICT (seq) DO UPDATE SET "
        "live = excluded.live, state = excluded.state, volume = excluded.volume",
        (
            job_number(volume.id, prefix="v"),
            volume.name,
            volume.is_live,
            volume.state.value,
            msgspec.json.encode(volume),
        ),
    )


def _write_chassis(connection: sqlite3.Connection, effect: PersistChassis) -> None:
    connection.execute(
        "INSERT INTO chassis (name, term) VALUES (?, ?) "
        "ON CONFLICT (name) DO UPDATE SET term = MAX(term, excluded.term)",
        (effect.name, effect.term),
    )


def _write_run(connection: sqlite3.Connection, effect: PersistRun) -> None:
    run = effect.run
    connection.execute(
        "INSERT INTO runs (user, application, run) VALUES (?, ?, ?)",
        (run.user, run.application, msgspec.json.encode(run)),
    )


def _write_profile(connection: sqlite3.Connection, effect: PersistProfile) -> None:
    profile = effect.profile
    connection.execute(
        "INSERT OR REPLACE INTO profiles (application, user, profile) VALUES (?, ?, ?)",
        (profile.application, profile.user, msgspec.json.encode(profile)),
    )


def _forget_profile(connection: sqlite3.Connection, effect: ForgetProfile) -> None:
    for table in ("runs", "profiles"):
        connection.execute(
            f"DELETE FROM {table} WHERE application = :application AND (:user IS NULL OR user = :user)",  # noqa: S608
            {"application": effect.application, "user": effect.user},
        )


_WRITERS: dict[type[Persist], Callable[[sqlite3.Connection, Any], None]] = {
    PersistLease: _write_lease,
    PersistDevice: _write_device,
    PersistNode: _write_node,
    ForgetNode: _forget_node,
    PersistCordon: _write_cordon,
    PersistWaits: _write_waits,
    PersistMove: _write_move,
    PersistVolume: _write_volume,
    PersistChassis: _write_chassis,
    PersistRun: _write_run,
    PersistProfile: _write_profile,
    ForgetProfile: _forget_profile,
}
