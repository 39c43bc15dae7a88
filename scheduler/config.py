"""What an operator sets for the scheduler."""

from __future__ import annotations

import math

from farbus.api.authority import Credentials
from farbus.api.identity import METHOD_ROLES, Role, valid_name
from farbus.errors import InvalidInput
from farbus.model.address import split_address
from farbus.model.quantity import MAX_NETWORK_MBIT_S, MAX_SECONDS
from farbus.model.rules import Rules
from farbus.scheduler.queue import MAX_PRIORITY

MIN_LEASE_TTL_S = 1.0
MAX_LEASE_TTL_S = 3_600.0
MIN_ROUND_LIMIT_S, MAX_ROUND_LIMIT_S = 0.1, 600.0
MIN_DEFRAGMENT_INTERVAL_S = 1.0
"""A look for moves takes up to some hundred decisions, which rounds wait for."""
EXAMPLE_ADDRESS = "0.0.0.0:7411"
HEARTBEATS_PER_LEASE = 5.0
"""Heartbeats in a lease time, so that a lost one or two end no lease."""

STATE_MARKS = ("ledger.lock", "ledger.db", "audit.jsonl")
"""Files of which one is in each directory that a scheduler has had for its state, also once its ledger was removed."""

MAX_WHOLE = 2**63 - 1
"""What messages have room for (int64)."""


def _check_whole(number: int, *, field: str, hint: str = "") -> None:
    if number < 0:
        raise InvalidInput(f"{field}: {number} is less than zero", hint=hint)
    if number > MAX_WHOLE:
        raise InvalidInput(f"{field}: more than {MAX_WHOLE}", hint=hint)


class SchedulerConfig(Rules, frozen=True, kw_only=True):
    """The settings of a scheduler; those of :class:`Rules` it takes in while it runs."""

    listen: str = "0.0.0.0:7411"
    """``ADDRESS:PORT`` to serve on; port 0 for any free one."""
    state: str
    """Directory of the ledger; made if it is not there."""
    credentials: Credentials
    lease_ttl_s: float = 15.0
    """How long a lease holds without renewal, and how long a node may be silent."""
    return_s: float = 15.0
    """How long nodes have to come back after a restart of the scheduler, at least the lease time."""
    restart_grace_s: float = 120.0
    """How long an agent that said that it is stopped may take to be started again, at least the lease time; its node's
    jobs go on meanwhile."""
    unreachable_limit_s: float = 300.0
    """How long a running job is kept while one of its nodes can't be reached, at least the lease time, unless the job
    says otherwise: the nodes keep its leases between them, and its devices go to nobody else."""
    round_delay_s: float = 0.01
    """How long a round waits for further events, so that a burst of them shares one."""
    round_limit_s: float = 10.0
    """Longest time that one decision may take; one that takes longer is given up, and the next round looks at fewer
    jobs."""
    policy: str = ""
    """Name of the placement policy; empty for the default."""
    metrics: str = ""
    """``ADDRESS:PORT`` for Prometheus, without authentication; empty for none."""
    ca_directory: str = ""
    """The authority's directory (``farbus ca init``), to issue and renew certificates with; empty for none."""
    join: str = ""
    """``ADDRESS:PORT`` where machines join with tokens; needs ``ca_directory``; empty for none."""
    staging_bytes: int = 64 * 2**30
    """Files of jobs that are kept, of all users together."""
    staging_bytes_per_user: int = 16 * 2**30
    """Of one user."""
    staging_files: int = 400_000
    """Files of jobs that are kept, of all users together: each takes some 300 bytes of memory."""
    staging_files_per_user: int = 100_000
    """Of one user; the same number may stand in the lists of what his jobs have put out."""
    staging_bytes_per_job: int = 8 * 2**30
    """Of one job, in each direction."""
    operator_only: tuple[str, ...] = ()
    """Methods (``Submit``) that only operators may call for the time being."""
    user_nodes: tuple[str, ...] = ("*",)
    """Names and patterns of nodes that may speak for their users; on others only certificates speak for people."""
    operator_nodes: tuple[str, ...] = ()
    """Names and patterns of nodes whose ``operators`` operate the whole cluster, and not their node alone."""
    chassis_servers: dict[str, tuple[str, ...]] = {}
    """By chassis, names and patterns of nodes whose agents may serve it; a chassis that is not named is then served by
    nobody.  Empty: any node serves what it offers, and who offers it first is named."""

    @property
    def rules(self) -> Rules:
        """The settings that a scheduler takes in while it runs."""
        return Rules(**{name: getattr(self, name) for name in Rules.__struct_fields__})

    @property
    def heartbeat_s(self) -> float:
        """Seconds between an agent's heartbeats."""
        return self.lease_ttl_s / HEARTBEATS_PER_LEASE

    def check(self) -> None:
        """Raise :class:`InvalidInput` naming the setting that can't be."""
        split_address(self.listen, field="--listen", example=EXAMPLE_ADDRESS)
        if self.metrics:
            split_address(self.metrics, field="--metrics", example=EXAMPLE_ADDRESS)
        if self.join:
            split_address(self.join, field="--join", example=EXAMPLE_ADDRESS)
            if not self.ca_directory:
                raise InvalidInput("--join: nothing to issue certificates with", hint="give the authority with --ca")
        for field in (
            "staging_bytes",
            "staging_bytes_per_user",
            "staging_files",
            "staging_files_per_user",
            "staging_bytes_per_job",
        ):
            _check_whole(getattr(self, field), field=field)
        # Those of nodes stay theirs: without them there is no cluster.
        known = {method.rpartition("/")[2] for method, roles in METHOD_ROLES.items() if Role.OPERATOR in roles}
        for name in self.operator_only:
            if name not in known:
                raise InvalidInput(
                    f"operator_only: there is no method {name!r}", hint=f"use {', '.join(sorted(known))}"
                )
        for field in ("user_nodes", "operator_nodes"):
            if not all(getattr(self, field)):
                raise InvalidInput(f"{field}: one is empty", hint='use names and patterns of nodes, like "login*"')
        for chassis, nodes in self.chassis_servers.items():
            if not chassis or not all(nodes):
                raise InvalidInput(
                    f"chassis_servers: a name of a chassis or of a node of {chassis!r} is empty",
                    hint='write CHASSIS = ["NODE", ...]; with no node at all nobody serves it',
                )
        if not self.state:
            raise InvalidInput("--state: it is empty", hint="give the directory for the scheduler's ledger")
        if not MIN_LEASE_TTL_S <= self.lease_ttl_s <= MAX_LEASE_TTL_S:
            raise InvalidInput(
                f"lease_ttl_s: {self.lease_ttl_s:g} is not from {MIN_LEASE_TTL_S:g} to {MAX_LEASE_TTL_S:g}"
            )
        for field in ("return_s", "restart_grace_s"):
            if not 0 <= getattr(self, field) <= MAX_LEASE_TTL_S:
                raise InvalidInput(f"{field}: {getattr(self, field):g} is not from 0 to {MAX_LEASE_TTL_S:g}")
        if not 0 <= self.unreachable_limit_s <= MAX_SECONDS:
            raise InvalidInput(f"unreachable_limit_s: {self.unreachable_limit_s:g} is not from 0 to {MAX_SECONDS:g}")
        self._check_rules()
        if not math.isfinite(self.round_delay_s) or not 0 <= self.round_delay_s <= 10:
            raise InvalidInput(f"round_delay_s: {self.round_delay_s:g} is not from 0 to 10")
        if not MIN_ROUND_LIMIT_S <= self.round_limit_s <= MAX_ROUND_LIMIT_S:
            raise InvalidInput(
                f"round_limit_s: {self.round_limit_s:g} is not from {MIN_ROUND_LIMIT_S:g} to {MAX_ROUND_LIMIT_S:g}"
            )

    def _check_rules(self) -> None:
        for field, quota in (("quota", self.quota), *((f"quotas.{user}", each) for user, each in self.quotas.items())):
            for part in ("devices", "jobs", "volume_bytes"):
                value = getattr(quota, part)
                if value is not None:
                    _check_whole(value, field=f"{field}.{part}", hint="leave it out for no limit")
        for user in self.quotas:
            if not valid_name(user):
                raise InvalidInput(f"quotas: {user!r} is no user's name")
        if abs(self.user_priority) > MAX_PRIORITY:
            raise InvalidInput(f"user_priority: {self.user_priority} is not from -{MAX_PRIORITY} to {MAX_PRIORITY}")
        if not 0 <= self.remote_network_mbit_s <= MAX_NETWORK_MBIT_S:
            raise InvalidInput(
                f"remote_network_mbit_s: {self.remote_network_mbit_s} is not from 0 to {MAX_NETWORK_MBIT_S}"
            )
        if self.defragment_jobs < 1:
            raise InvalidInput(f"defragment_jobs: {self.defragment_jobs} is less than 1")
        _check_whole(self.defragment_jobs, field="defragment_jobs")
        if 0 < self.defragment_interval_s < MIN_DEFRAGMENT_INTERVAL_S:
            raise InvalidInput(
                f"defragment_interval_s: {self.defragment_interval_s:g} is less than {MIN_DEFRAGMENT_INTERVAL_S:g}",
                hint="use 0 for none",
            )
        for field in ("max_time_limit_s", "preemption_min_run_s", "defragment_interval_s", "defragment_pause_s"):
            if not 0 <= getattr(self, field) <= MAX_SECONDS:
                raise InvalidInput(f"{field}: {getattr(self, field):g} is not from 0 to {MAX_SECONDS:g}")
