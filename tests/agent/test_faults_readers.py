"""Readers of logs that don't read: the agent sends no more than they gave credit for."""

from __future__ import annotations

import pytest

from farbus.agent.config import AgentConfig
from farbus.api.v1 import session_pb2
from farbus.linux.output import CHUNK_BYTES
from tests.agent.harness import MYSELF, AgentInProcess, ScriptedScheduler, ScriptedSessions

pytestmark = pytest.mark.timeout(60)

OUTPUT_BYTES = 2**20


async def write_output(sessions: ScriptedSessions) -> None:
    """Have a task write a mebibyte and end."""
    start = session_pb2.StartTask(
        job_id="j1", task="main.0", user=MYSELF, cwd="/", command=("head", "-c", str(OUTPUT_BYTES), "/dev/zero")
    )
    assert (await sessions.command(start_task=start)).ok
    await sessions.exited("j1")


def request(number: str, credit_bytes: int) -> session_pb2.SchedulerMessage:
    wanted = session_pb2.LogRequest(request_id=number, job_id="j1", task="main.0", credit_bytes=credit_bytes)
    return session_pb2.SchedulerMessage(log_request=wanted)


def credit(number: str, size: int) -> session_pb2.SchedulerMessage:
    return session_pb2.SchedulerMessage(log_credit=session_pb2.LogCredit(request_id=number, bytes=size))


def received(sessions: ScriptedSessions, number: str) -> int:
    data = [said.log_data for said in sessions.said if said.HasField("log_data")]
    return sum(len(piece.chunk.data) for piece in data if piece.request_id == number)


def ended(sessions: ScriptedSessions, number: str) -> bool:
    return any(said.log_data.request_id == number and said.log_data.end for said in sessions.said)


async def test_no_more_is_sent_than_there_is_credit_for(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler
) -> None:
    sessions = scheduler.sessions
    agent.start(config)
    await sessions.connected()
    await write_output(sessions)
    await sessions.tell(request("slow", 1))
    await sessions.until(lambda: received(sessions, "slow") > 0)
    # Another reader gets all of it meanwhile: whatever was to come for the first has come.
    await sessions.tell(request("fast", 2 * OUTPUT_BYTES))
    await sessions.until(lambda: ended(sessions, "fast"))
    assert received(sessions, "fast") == OUTPUT_BYTES
    assert received(sessions, "slow") <= CHUNK_BYTES
    before = received(sessions, "slow")
    # The last chunk has overdrawn what there was.
    await sessions.tell(credit("slow", CHUNK_BYTES))
    await sessions.until(lambda: received(sessions, "slow") > before)
    await sessions.tell(credit("slow", OUTPUT_BYTES))
    await sessions.until(lambda: ended(sessions, "slow"))
    assert received(sessions, "slow") == OUTPUT_BYTES


async def test_a_scheduler_that_knows_no_credit_gets_everything(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler
) -> None:
    sessions = scheduler.sessions
    agent.start(config)
    await sessions.connected()
    await write_output(sessions)
    await sessions.tell(request("old", 0))
    await sessions.until(lambda: ended(sessions, "old"))
    assert received(sessions, "old") == OUTPUT_BYTES


async def test_a_log_without_credit_is_ended_by_its_reader(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler
) -> None:
    sessions = scheduler.sessions
    agent.start(config)
    await sessions.connected()
    await write_output(sessions)
    await sessions.tell(request("gone", 1))
    await sessions.until(lambda: received(sessions, "gone") > 0)
    await sessions.tell(session_pb2.SchedulerMessage(log_cancel=session_pb2.LogCancel(request_id="gone")))
    await sessions.tell(credit("gone", OUTPUT_BYTES))
    # The number is free again.
    await sessions.tell(request("gone", 2 * OUTPUT_BYTES))
    await sessions.until(lambda: ended(sessions, "gone"))
