"""How a command finds the cluster, and asks it.

In this order: ``--socket`` (``FARBUS_SOCKET``), ``--server`` with
``--credentials``, the socket of this machine's agent, the ``farbus up`` that
this user runs.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from farbus.cli.runtime import RunningCluster, find_running_cluster, lock_holder, runtime_directory
from farbus.errors import FarbusError, InvalidInput, NotFound, NotPermitted, TimedOut, Unavailable
from farbus.model.address import is_endpoint
from farbus.model.value import Value

if TYPE_CHECKING:
    from farbus.api.authority import Credentials
    from farbus.api.client import ClusterClient

AGENT_SOCKET = "/run/farbus/agent.sock"

R = TypeVar("R")


class Target(Value, frozen=True, kw_only=True):
    """Whom to ask: an agent's ``socket``, or the scheduler at ``server`` with a certificate."""

    socket: str = ""
    server: str = ""
    credentials: str = ""
    name: str = ""
    """How messages call it."""
    runtime: str = ""
    """Where the ``farbus up`` that it is of tells of itself."""

    @property
    def is_over(self) -> bool:
        """Whether its ``farbus up`` has ended: nobody starts it again."""
        return bool(self.runtime) and lock_holder(Path(self.runtime)) is None


def find_target(
    *, socket: str = "", server: str = "", credentials: str = "", node: str = "", agent_only: bool = False
) -> Target:
    """Choose whom to ask, from the options of a command.

    ``node`` chooses a node of this user's ``farbus up``; ``agent_only`` is for
    commands that a scheduler can't serve, whose advice names none.  Raises
    :class:`InvalidInput` for options that contradict each other and
    :class:`Unavailable` where there is no cluster to be found.
    """
    if socket and server and socket == os.environ.get("FARBUS_SOCKET"):
        # An option goes before the environment.
        socket = ""
    if socket and server and server == os.environ.get("FARBUS_SERVER"):
        server = ""
    if socket and server:
        raise InvalidInput("--socket and --server exclude each other", hint="give one of them")
    if node and (socket or server):
        raise InvalidInput(
            "--node chooses among the nodes of a farbus up; with --socket or --server it has no meaning",
            hint="leave it out",
        )
    if socket:
        return Target(socket=_existing_socket(socket), name=socket)
    if server:
        if not is_endpoint(server):
            raise InvalidInput(f"--server {server}: not HOST:PORT", hint="for example --server scheduler:7411")
        if not credentials:
            raise InvalidInput("--server needs --credentials DIR", hint="make a user certificate with farbus ca issue")
        return Target(server=server, credentials=credentials, name=server)
    if not node and _is_socket(AGENT_SOCKET):
        return Target(socket=AGENT_SOCKET, name=AGENT_SOCKET)
    cluster = find_running_cluster()
    if cluster is None:
        raise Unavailable(
            f"no cluster found: no agent on this machine ({AGENT_SOCKET}) and no farbus up of yours",
            hint="start one with farbus up, make this machine a node (docs/install.md), or name its agent with --socket"
            if agent_only
            else "start one with farbus up, or name one with --socket or --server",
        )
    return target_in(cluster, node)


def target_in(cluster: RunningCluster, node: str = "") -> Target:
    """Return the target of one node of a ``farbus up``, the default one if ``node`` is empty."""
    wanted = node or cluster.default_node
    for candidate in cluster.nodes:
        if candidate.name == wanted:
            return Target(socket=candidate.socket, name=f"node {wanted}", runtime=str(runtime_directory()))
    names = ", ".join(candidate.name for candidate in cluster.nodes)
    raise NotFound(f"this farbus up has no node {wanted}", hint=f"it has {names}")


def connect(target: Target) -> ClusterClient:
    """Return the client for ``target``, to be used as an asynchronous context manager."""
    from farbus.api.client import ClusterClient  # noqa: PLC0415 - gRPC takes a third of a second to load

    if target.socket:
        client = ClusterClient.local(socket=target.socket)
        client.is_over = lambda: target.is_over
        return client
    return ClusterClient.remote(address=target.server, credentials=find_credentials(target.credentials))


def find_credentials(directory: str) -> Credentials:
    """Return the only credentials in ``directory``."""
    from farbus.api.authority import Credentials  # noqa: PLC0415 - cryptography is not needed for a socket

    base = Path(directory)
    try:
        files = [base / name for name in os.listdir(base)]
        names = sorted(
            path.stem
            for path in files
            if path.suffix == ".crt" and path.stem != "ca" and path.with_suffix(".key").exists()
        )
    except PermissionError as error:
        # Whoever became another user may have kept the variables of the first.
        raise NotPermitted(
            f"{directory}: permission denied", hint="name credentials of your own, or unset FARBUS_CREDENTIALS"
        ) from error
    except OSError:
        names = []
    if not names:
        raise NotFound(f"{directory}: no certificate with its key", hint="make one with farbus ca issue")
    if len(names) > 1:
        raise InvalidInput(
            f"{directory}: certificates of {', '.join(names)}", hint="keep one certificate in a directory"
        )
    return Credentials.in_directory(base, names[0])


def ask(target: Target, question: Callable[[ClusterClient], Awaitable[R]]) -> R:
    """Connect, run one coroutine with the client, and return what it returns."""

    async def conversation() -> R:
        async with connect(target) as client:
            return await question(client)

    return asyncio.run(conversation())


def ask_each(
    target: Target, names: Sequence[str], question: Callable[[ClusterClient, str], Awaitable[R]]
) -> tuple[list[R], list[FarbusError]]:
    """Ask the same of each of ``names``, also where another is refused; return the answers, and the refusals.

    Where nobody answers, the rest is not asked.
    """
    answers: list[R] = []
    refusals: list[FarbusError] = []

    async def conversation(client: ClusterClient) -> None:
        for name in dict.fromkeys(names):
            try:
                answers.append(await question(client, name))
            except FarbusError as error:
                refusals.append(error)
                if isinstance(error, Unavailable | TimedOut):
                    return

    ask(target, conversation)
    return answers, refusals


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(Path(path).stat().st_mode)
    except OSError:
        return False


def _existing_socket(path: str) -> str:
    if not _is_socket(path):
        raise Unavailable(
            f"{path}: no agent listens there", hint="start farbus agent or farbus up, or correct --socket"
        )
    return path
