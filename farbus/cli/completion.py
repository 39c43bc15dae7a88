"""Words that the shell completes from the cluster.

Quickly or not at all: somebody who presses TAB waits for nothing, and an error
there has no place to be shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from farbus.cli.connection import connect, find_target
from farbus.cli.runtime import find_running_cluster

if TYPE_CHECKING:
    from farbus.api.client import ClusterClient

ANSWER_WITHIN_S = 1.0

Words = list[tuple[str, str] | str]


def _ask(ctx: Any, question: Callable[[ClusterClient], Awaitable[Words]]) -> Words:
    async def conversation() -> Words:
        socket, server, credentials = (ctx.params.get(name) or "" for name in ("socket", "server", "credentials"))
        target = find_target(socket=socket, server=server, credentials=credentials)
        async with asyncio.timeout(ANSWER_WITHIN_S), connect(target) as client:
            return await question(client)

    try:
        return asyncio.run(conversation())
    except Exception:
        return []


def complete_job(ctx: Any, incomplete: str) -> Words:
    """Complete the id of a job, also of one that has ended."""

    async def question(client: ClusterClient) -> Words:
        jobs = await client.list_jobs(include_ended=True)
        return [(s.job.id, f"{s.job.name}, {s.state}") for s in jobs if s.job.id.startswith(incomplete)]

    return _ask(ctx, question)


def complete_node(ctx: Any, incomplete: str) -> Words:
    """Complete the name of a node."""

    async def question(client: ClusterClient) -> Words:
        nodes = await client.list_nodes()
        return [(s.node.name, s.state.value) for s in nodes if s.node.name.startswith(incomplete)]

    return _ask(ctx, question)


def complete_device(ctx: Any, incomplete: str) -> Words:
    """Complete the identity of a device."""

    async def question(client: ClusterClient) -> Words:
        devices = await client.list_devices()
        return [
            (s.device.id, f"{s.device.model} of {s.node or s.chassis}")
            for s in devices
            if s.device.id.startswith(incomplete)
        ]

    return _ask(ctx, question)


def complete_move(ctx: Any, incomplete: str) -> Words:
    """Complete the id of a move, also of one that has ended."""

    async def question(client: ClusterClient) -> Words:
        moves = await client.list_moves(include_ended=True)
        return [(s.id, f"{s.device}, {s.state}") for s in moves if s.id.startswith(incomplete)]

    return _ask(ctx, question)


def complete_volume(ctx: Any, incomplete: str) -> Words:
    """Complete the name of a volume."""

    async def question(client: ClusterClient) -> Words:
        volumes = await client.list_volumes()
        return [(s.name, f"{s.state} of {s.user}") for s in volumes if s.name.startswith(incomplete)]

    return _ask(ctx, question)


def complete_node_or_device(ctx: Any, incomplete: str) -> Words:
    """Complete the name of a node or the identity of a device."""
    return [*complete_node(ctx, incomplete), *complete_device(ctx, incomplete)]


def complete_up_node(incomplete: str) -> Words:
    """Complete the name of a node of this user's ``farbus up``; nobody is asked."""
    try:
        cluster = find_running_cluster()
    except Exception:
        return []
    return [node.name for node in cluster.nodes if node.name.startswith(incomplete)] if cluster else []
