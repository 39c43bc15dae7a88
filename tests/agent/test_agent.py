"""A whole agent against a scripted scheduler: real protocol, real certificates, real processes."""

from __future__ import annotations

import pytest

from farbus.agent.config import AgentConfig
from farbus.api.v1 import session_pb2
from tests.agent.harness import MYSELF, AgentInProcess, ScriptedScheduler


def start_task(job: str, *command: str, **more: object) -> session_pb2.StartTask:
    """Return a command that starts a task."""
    arguments: dict[str, object] = {"user": MYSELF, "cwd": "/", **more}
    return session_pb2.StartTask(job_id=job, task="main.0", command=command, **arguments)


async def test_hello_names_the_node_and_what_it_has(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler
) -> None:
    agent.start(config)
    await scheduler.sessions.connected()
    hello = scheduler.sessions.hellos[0]
    assert hello.node.name == "n1"
    assert hello.node.capacity.cpu_milli > 0
    assert not hello.held
    assert not hello.tasks


async def test_a_task_runs_and_its_output_and_exit_code_come_back(
    agent: AgentInProcess, config: AgentConfig, scheduler: ScriptedScheduler
) -> None:
    agent.start(config)
    await scheduler.sessions.connected()
    outcome = await scheduler.sessions.command(
        start_task=start_task("j1", "sh", "-c", "echo out; echo err >&2; exit 3")
    )
    assert outcome.ok
    exited = await scheduler.sessions.exited("j1")
    assert exited.status.exit_code == 3
    assert await scheduler.sessions.log("j1") == (b"out\n", b"err\n", "")
    released = await scheduler.sessions.command(
        unprepare_client=session_pb2.UnprepareClient(job_id="j1", task="main.0")
    )
    assert released.ok


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        (("/no/such/program",), 127, "no such program"),
        (("/etc/passwd",), 126, "not executable"),
    ],
)
async def test_a_program_that_cannot_run_ends_its_task_as_a_shell_would(
    agent: AgentInProcess,
    config: AgentConfig,
    scheduler: ScriptedScheduler,
    command: tuple[str, ...],
    code: int,
    says: str,
) -> None:
    agent.start(config)
    await scheduler.sessions.connected()
    outcome = await scheduler.sessions.command(start_task=start_task("j1", *command))
    assert outcome.ok
    exited = await scheduler.sessions.exited("j1")
    assert exited.status.exit_code == code
    assert says in exited.status.reason
