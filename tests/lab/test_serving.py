"""A chassis in Redfish's dialect that any of three agents can serve; who serves it is killed or loses power.

What moves, and how, is that of :mod:`tests.lab.test_moves`.  Here each agent has the credentials of the chassis, over
TLS with a session, and the scheduler names another one when the session of the one that serves has ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from farbus.model.fabric import Dialect, FabricStep
from tests.lab import test_moves
from tests.lab.chassis import GPU_CARD, GPU_NAME, PORTS, Bed, chassis_bed, on_bus
from tests.lab.cluster import JOB_LIMIT_S, agent_is_back, farbus, job_until, log_has, main_pid, nodes_are_ready, submit
from tests.lab.guest import patient
from tests.lab.nodes import Lab
from tests.lab.test_moves import begin_to_move, ends_well

pytestmark = [pytest.mark.lab, pytest.mark.timeout(patient(1800))]


@pytest.fixture(scope="module")
def bed(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    directory = tmp_path_factory.mktemp("chassis")
    with chassis_bed(lab, directory, dialect=Dialect.REDFISH, servers=PORTS.values()) as made:
        yield made


test_a_drive_and_a_card_move_while_another_drive_is_written_to = (
    test_moves.test_a_drive_and_a_card_move_while_another_drive_is_written_to
)


def serve_from(bed: Bed, name: str) -> int:
    """Have the agent of a node serve the chassis; return the term of that."""
    term, serving = bed.served()
    others = [node for node in PORTS.values() if node != name] if serving != name else []
    # With nobody else to be named it is the one; it stays that when the others are back.
    for other in others:
        bed.nodes[other].run("systemctl", "stop", "farbus-agent", limit_s=JOB_LIMIT_S)
    for other in others:
        bed.nodes[other].run("systemctl", "start", "farbus-agent", limit_s=JOB_LIMIT_S)
    nodes_are_ready(bed.a, len(PORTS))
    term, serving = bed.served()
    assert serving == name
    return term


def is_served_by_another(bed: Bed, name: str, term: int) -> None:
    """Wait until the scheduler has named another agent, in a later term."""
    last = "journalctl -u farbus-scheduler -o cat | grep '\"chassis served\"' | tail -n 1"
    bed.a.until(f"""{last} | grep -vE '"node": ?"{name}"'""", limit_s=JOB_LIMIT_S)
    later, serving = bed.served()
    assert later > term
    assert serving != name


@pytest.mark.parametrize("step", [FabricStep.UNASSIGN, FabricStep.ASSIGN])
def test_a_move_ends_when_the_agent_that_serves_its_chassis_is_killed(bed: Bed, step: FabricStep) -> None:
    term = serve_from(bed, "a")
    written, open_move = begin_to_move(bed, step)
    pid = main_pid(bed.a, "farbus-agent")
    bed.a.kill(pid)
    is_served_by_another(bed, "a", term)
    nodes_are_ready(bed.a, len(PORTS))
    assert main_pid(bed.a, "farbus-agent") not in (pid, "0")
    ends_well(bed, open_move, written)


@pytest.mark.parametrize(("step", "source", "target"), [(FabricStep.UNASSIGN, "b", "c"), (FabricStep.ASSIGN, "c", "a")])
def test_a_move_ends_when_the_node_that_serves_its_chassis_loses_power(
    bed: Bed, step: FabricStep, source: str, target: str
) -> None:
    """First the node also gives the device, then it has nothing to do with the move."""
    term = serve_from(bed, "b")
    written, open_move = begin_to_move(bed, step, source, target)
    bed.b.power_off()
    is_served_by_another(bed, "b", term)
    bed.b.power_on_again()
    bed.b.wait_for_boot()
    agent_is_back(bed.b)
    nodes_are_ready(bed.a, len(PORTS))
    ends_well(bed, open_move, written, source, target, may_be_undone=True)


# A job that needs a device which is at another node.

AGENT = Path(__file__).with_name("gpu_agent.py")

PLAY_GPU = """
mkdir -p /etc/systemd/system/farbus-agent.service.d
cat > /etc/systemd/system/farbus-agent.service.d/gpu.conf <<'END'
[Service]
ExecStart=
ExecStart=/bin/sh -ec 'FARBUS_SETTINGS=print farbus agent --config /etc/farbus/agent.toml > /run/farbus/agent.json; \\
    exec /opt/farbus/bin/python /opt/lab/gpu_agent.py /run/farbus/agent.json'
Environment=PATH=/usr/local/bin:/usr/bin:/bin
END
systemctl daemon-reload
systemctl restart farbus-agent
"""

USE_GPU = """
grep -qx 0x11e8 /sys/bus/pci/devices/*/device || exit 9
echo it is there
until [ -e /run/enough.$FARBUS_JOB ]; do sleep 1; done
"""
"""A program that ends with 9 where the card is not on the bus when it starts, and else works until a file is there."""


@pytest.fixture
def with_gpu(bed: Bed) -> Bed:
    """The card is a GPU, and it is at b."""
    for node in bed.nodes.values():
        node.write("/opt/lab/gpu_agent.py", AGENT.read_text())
        node.shell(PLAY_GPU, limit_s=JOB_LIMIT_S)
    nodes_are_ready(bed.a, len(PORTS))
    test_moves.bring(bed, GPU_CARD, "b")
    farbus(bed.a, "devices", "-o", "json", until=f'"id": "{GPU_NAME}"')
    return bed


def gpu_job(bed: Bed, node: str) -> str:
    """Submit a job that wants the GPU on a node, from wherever it is."""
    routes = ("--route", "local", "--route", "recomposed")
    return submit(bed.a, "--gpus", "1", "--node", node, *routes, "--", "sh", "-c", USE_GPU)


def test_a_job_starts_when_its_gpu_has_come_from_another_node_and_keeps_it(with_gpu: Bed) -> None:
    bed = with_gpu
    job = gpu_job(bed, "c")
    log_has(bed.a, job, "it is there")
    assert (GPU_CARD in on_bus(bed.b), GPU_CARD in on_bus(bed.c)) == (False, True)
    assert bed.chassis.nodes()[GPU_CARD] == "c"
    # Neither an operator nor another job gets it meanwhile.
    refused = test_moves.move(bed, GPU_CARD, "b", check=False)
    assert refused.code
    assert job in refused.stderr
    other = gpu_job(bed, "b")
    farbus(bed.a, "explain", other, until="GPU", user="alice")
    assert GPU_CARD in on_bus(bed.c)
    bed.c.run("touch", f"/run/enough.{job}")
    job_until(bed.a, job, "succeeded")
    # Now it goes to the one that has waited.
    log_has(bed.a, other, "it is there")
    assert (GPU_CARD in on_bus(bed.b), GPU_CARD in on_bus(bed.c)) == (True, False)
    bed.b.run("touch", f"/run/enough.{other}")
    job_until(bed.a, other, "succeeded")
