"""What a node remembers of its cluster from one process of the agent to the next.

The highest term of a scheduler that it has served, the lease time, the port on
which it serves other agents, and where those serve.  A scheduler of a lower
term works on an old ledger (a second one, or one that was restored from a
backup): its epochs would count again, so its sessions are refused.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec
import structlog

from farbus.errors import Conflict, FarbusError
from farbus.linux.files import write_owned
from farbus.model.value import Value, from_json, to_json

_log = structlog.get_logger()

MAX_PEERS = 10_000
"""Nodes whose endpoint is remembered: those that were told first are forgotten first."""


MAX_ENDPOINT = 300
"""Characters of an endpoint: a DNS name has at most 253."""

# HOST:PORT or [IPV6]:PORT, and nothing that gRPC could take for another scheme.
_ENDPOINT = re.compile(r"([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+(%[A-Za-z0-9_.-]+)?\]):[0-9]{1,5}")


class _Remembered(Value, frozen=True, kw_only=True):
    term: int = 0
    lease_ttl_s: float = 0.0
    peer_port: int = 0
    peers: dict[str, str] = {}


class Membership:
    """The file ``path``; a disk that refuses it is told loudly and costs the memory of a restart only.

    Without a path nothing outlives the process.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known = _read(path) if path is not None else _Remembered()

    @property
    def term(self) -> int:
        """Highest term that this node has served."""
        return self._known.term

    @property
    def lease_ttl_s(self) -> float:
        """The lease time, 0 before the first session."""
        return self._known.lease_ttl_s

    @property
    def peer_port(self) -> int:
        """The port on which an earlier process served other agents; 0 for none."""
        return self._known.peer_port

    def endpoint_of(self, node: str) -> str:
        """Return where the agent of ``node`` serves other agents; empty when that was never told."""
        return self._known.peers.get(node, "")

    def accept(self, *, term: int, lease_ttl_s: float) -> None:
        """Serve a scheduler of ``term``; raise :class:`Conflict` when a newer one was seen."""
        if term < self._known.term:
            raise Conflict(
                f"the scheduler's term is {term}, but this node has served term {self._known.term}: its ledger is old",
                hint=f"stop that scheduler; if its ledger was restored on purpose, stop this agent, see that nothing "
                f"uses its devices, and remove {self._path}",
            )
        self._replace(term=term, lease_ttl_s=lease_ttl_s)

    def serve_on(self, port: int) -> None:
        """Keep the port for the next process, whose peers know it."""
        self._replace(peer_port=port)

    def learn(self, node: str, endpoint: str) -> None:
        """Keep where the agent of another node serves, if that can be: it is that node's word."""
        if not endpoint or self._known.peers.get(node) == endpoint:
            return
        if len(endpoint) > MAX_ENDPOINT or _ENDPOINT.fullmatch(endpoint) is None:
            _log.warning("peer endpoint not understood", node=node, endpoint=endpoint[:MAX_ENDPOINT])
            return
        peers = {**self._known.peers, node: endpoint}
        while len(peers) > MAX_PEERS:
            del peers[next(iter(peers))]
        self._replace(peers=peers)

    def _replace(self, **changes: object) -> None:
        known = msgspec.structs.replace(self._known, **changes)
        if known == self._known:
            return
        self._known = known
        if self._path is None:
            return
        try:
            write_owned(self._path, to_json(known), account=None, durable=True)
        except OSError as error:
            _log.error("membership not written", file=str(self._path), error=error.strerror)


def _read(path: Path) -> _Remembered:
    try:
        return from_json(path.read_bytes(), _Remembered)
    except FileNotFoundError:
        return _Remembered()
    except (OSError, FarbusError, msgspec.MsgspecError) as error:
        aside = path.with_suffix(".broken")
        os.replace(path, aside)
        _log.error("membership was damaged; the next scheduler is believed", kept_as=str(aside), error=str(error))
        return _Remembered()
