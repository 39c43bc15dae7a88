"""A CUDA program of one guest with the GPU of another over soft-RoCE of the kernel, by real libibverbs and its driver.

``a`` has the scheduler and runs the programs; ``b`` has two software GPUs.  TCP and RDMA have the same addresses.  One
program is none of ours: a peer in Python (:mod:`tests.verbs.over_a_kernel`), which does what the page on the wire says,
and then what it may not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.lab.cluster import JOB_LIMIT_S, PACKAGES, farbus, job_until, log_has, nodes_are_ready, submit
from tests.lab.guest import Guest, patient
from tests.lab.nodes import Lab, cluster_start

pytestmark = [pytest.mark.lab, pytest.mark.timeout(patient(1800))]

LINK = "enp0s16"
MIB = 1
"""Of a vector: a copy is as large as a ring, so that it is sent in parts while others are taken."""

MTU_BYTES = 1024
PACKETS = "cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts"
ROCE_PORT = 4791

PEER = "/var/tmp/peer"
PEER_MODULES = ("peer.py", "pyverbs_door.py", "over_a_kernel.py")
VERBS = Path(__file__).parent.parent / "verbs"
PEER_LIMIT_S = patient(900)

AGENT_IS_BACK = """
this=$(systemctl show --property=InvocationID --value farbus-agent)
journalctl -b -o cat _SYSTEMD_INVOCATION_ID=$this | grep -q '"session open"'
"""


class Pair(NamedTuple):
    """The two machines."""

    a: Guest
    b: Guest


@pytest.fixture(scope="module")
def pair(lab: Lab, programs: Path) -> Pair:
    if not (programs / "vectors").exists():
        pytest.skip("needs nvcc for a CUDA program")
    a, b = lab.nodes("a", "b", farbus=True)
    a.copy_in(programs / "vectors", "/usr/local/bin/vectors")
    for guest in (a, b):
        guest.shell(f"modprobe rdma_rxe; rdma link add rxe0 type rxe netdev {LINK}")
        guest.shell("sed -i 's/^# remoting_rdma.*/remoting_rdma = \"on\"/' /etc/farbus/agent.toml")
    cluster_start({"b": 2}).run([a, b])
    return Pair(a, b)


def add_vectors(pair: Pair, *, transport: str) -> str:
    """Submit a program that adds vectors until it is told to end; return its job."""
    script = f"exec env FARBUS_TRANSPORT={transport} vectors /run/enough.$FARBUS_JOB {MIB}"
    return submit(pair.a, "--gpus", "1", "--node", "a", "--", "sh", "-c", script)


def rounds_of(pair: Pair, job: str) -> int:
    """Return how many sums have been right."""
    return farbus(pair.a, "logs", job, user="alice").stdout.count(" is right\n")


def more_rounds(pair: Pair, job: str, count: int = 2) -> None:
    """Wait until so many more sums have been right."""
    log_has(pair.a, job, f"round {rounds_of(pair, job) + count} is right")


def goes_by(pair: Pair, transport: str) -> None:
    """Wait until what carries the program's calls is this; agents measure every three seconds."""
    farbus(pair.a, "top", "-o", "json", until=f'"{transport}"', limit_s=JOB_LIMIT_S)


def ends_well(pair: Pair, job: str) -> None:
    pair.a.run("touch", f"/run/enough.{job}")
    job_until(pair.a, job, "succeeded")


@contextmanager
def nothing_by_roce(*guests: Guest) -> Iterator[None]:
    """Have the network between lose all packets of RoCE v2, and nothing else."""
    rule = f"INPUT -p udp --dport {ROCE_PORT} -j DROP"
    for guest in guests:
        guest.shell(f"iptables -I {rule}")
    try:
        yield
    finally:
        for guest in guests:
            guest.shell(f"iptables -D {rule}")


def test_a_program_computes_over_rdma(pair: Pair, tell: Callable[[str], None]) -> None:
    before = [int(guest.shell(PACKETS).stdout) for guest in pair]
    job = add_vectors(pair, transport="rdma")
    log_has(pair.a, job, "round 2 is right")
    goes_by(pair, "rdma")
    rounds = rounds_of(pair, job)
    sent = [int(guest.shell(PACKETS).stdout) - count for guest, count in zip(pair, before, strict=True)]
    tell(f"{rounds} sums of vectors of {MIB} MiB: {sent} packets of {MTU_BYTES} bytes")
    # Two vectors there, one back.
    assert sent[0] >= rounds * 2 * MIB * 2**20 // MTU_BYTES
    assert sent[1] >= rounds * MIB * 2**20 // MTU_BYTES
    ends_well(pair, job)


def test_a_session_goes_on_over_tcp_when_rdma_is_lost(pair: Pair) -> None:
    job = add_vectors(pair, transport="auto")
    log_has(pair.a, job, "round 1 is right")
    goes_by(pair, "rdma")
    with nothing_by_roce(*pair):
        # One round may have been on its way back; what is right from the second on has come another way.
        more_rounds(pair, job)
        # A new session finds it out before it begins.
        other = add_vectors(pair, transport="auto")
        log_has(pair.a, other, "round 1 is right")
        ends_well(pair, other)
    more_rounds(pair, job)
    ends_well(pair, job)


def test_who_insists_on_rdma_is_told_that_the_network_carries_none(pair: Pair) -> None:
    with nothing_by_roce(*pair):
        job = add_vectors(pair, transport="rdma")
        job_until(pair.a, job, "failed")
    said = farbus(pair.a, "logs", job, user="alice").stderr
    assert "the network between carries none (UDP port 4791, or packets of the adapters' size)" in said


@contextmanager
def without_tls(pair: Pair) -> Iterator[None]:
    """Have sessions be in the clear, which the peer in Python can speak."""

    def restart(change: str) -> None:
        for guest in pair:
            guest.shell(
                f"sed -i '{change}' /etc/farbus/agent.toml; systemctl restart farbus-agent", limit_s=JOB_LIMIT_S
            )
        for guest in pair:
            guest.until(AGENT_IS_BACK, limit_s=JOB_LIMIT_S)
        nodes_are_ready(pair.a, len(pair))

    restart("s/^# remoting_tls/remoting_tls/")
    try:
        yield
    finally:
        restart("s/^remoting_tls/# remoting_tls/")


def test_a_peer_that_is_none_of_ours_computes_and_may_do_nothing_else(pair: Pair, tell: Callable[[str], None]) -> None:
    for name in PEER_MODULES:
        pair.a.copy_in(VERBS / name, f"{PEER}/tests/verbs/{name}")
    script = f"exec env PYTHONPATH={PEER}:{PACKAGES} /usr/bin/python3 -m tests.verbs.over_a_kernel 2>&1"
    with without_tls(pair):
        job = submit(pair.a, "--gpus", "1", "--node", "a", "--", "sh", "-c", script)
        farbus(pair.a, "jobs", job, "-o", "json", until='"(succeeded|failed)"', user="alice", limit_s=PEER_LIMIT_S)
    said = farbus(pair.a, "logs", job, user="alice").stdout
    tell(f"a peer in Python over soft-RoCE: {said.split()}")
    assert said.endswith("all ok\n"), said


def test_a_device_that_is_deleted_is_kept_for_the_session_and_then_missed(pair: Pair) -> None:
    job = add_vectors(pair, transport="rdma")
    log_has(pair.a, job, "round 1 is right")
    # The kernel waits for those who have it open, and tells them nothing.
    deleting = pair.a.start("rdma", "link", "delete", "rxe0", limit_s=JOB_LIMIT_S)
    more_rounds(pair, job)
    assert not deleting.ended
    ends_well(pair, job)
    deleting.wait()
    job = add_vectors(pair, transport="rdma")
    job_until(pair.a, job, "failed")
    said = farbus(pair.a, "logs", job, user="alice").stderr
    assert "no RDMA device with RoCE v2 has this end's address, " in said
    job = add_vectors(pair, transport="auto")
    log_has(pair.a, job, "round 1 is right")
    ends_well(pair, job)
