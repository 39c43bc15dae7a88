"""Bytes that the kernel of a server's machine sends from where they lie (MSG_ZEROCOPY), between two guests.

Over the loopback a kernel copies all the same; here the network adapter is one of QEMU's that reads memory by itself
(scatter and gather, and TCP segmentation), as real ones do.  ``a`` has the scheduler and runs a program, unencrypted;
``b`` has the GPU and tells what its kernel said.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.cluster import JOB_LIMIT_S, farbus, job_until, log_has, submit
from tests.lab.guest import Guest, Machine, patient
from tests.lab.nodes import Lab, cluster_start

pytestmark = [pytest.mark.lab, pytest.mark.timeout(patient(1800))]

MACHINE = Machine(cables=1, adapter="e1000")
MIB = 1
"""Of a vector, which comes back in one piece or two."""

CUT_S = 6
"""For so long the network is lost: some retransmissions, and not yet a connection."""

COUNTER = "farbus_session_uncopied_bytes_total"
METRIC = f"""
/usr/bin/python3 -c 'import re, urllib.request
text = urllib.request.urlopen("http://127.0.0.1:9465/metrics").read().decode()
print(sum(float(value) for value in re.findall(r"^{COUNTER}[^ ]* (.*)$", text, re.M)))'
"""


def rounds_of(a: Guest, job: str) -> int:
    return farbus(a, "logs", job, user="alice").stdout.count(" is right\n")


def more_rounds(a: Guest, job: str, count: int = 2) -> None:
    log_has(a, job, f"round {rounds_of(a, job) + count} is right")


def uncopied(b: Guest, more_than: float = 0.0) -> float:
    """Return how many bytes have gone so, once they are more."""
    told = b.until(f'n=$({METRIC}); echo "$n"; test "${{n%.*}}" -gt {int(more_than)}', limit_s=JOB_LIMIT_S)
    return float(told.split()[-1])


def test_vectors_come_back_uncopied_and_right_whatever_the_network_loses(
    lab: Lab, programs: Path, tell: Callable[[str], None]
) -> None:
    if not (programs / "vectors").exists():
        pytest.skip("needs nvcc for a CUDA program")
    a, b = lab.nodes("a", "b", machine=MACHINE, farbus=True)
    a.copy_in(programs / "vectors", "/usr/local/bin/vectors")
    for guest in (a, b):
        # What TLS writes lies where the next record is made: the kernel copies it.
        guest.shell("sed -i 's/^# remoting_tls/remoting_tls/' /etc/farbus/agent.toml")
    cluster_start({"b": 1}).run([a, b])
    script = f"exec env FARBUS_TRANSPORT=tcp vectors /run/enough.$FARBUS_JOB {MIB}"
    job = submit(a, "--gpus", "1", "--node", "a", "--", "sh", "-c", script)
    log_has(a, job, "round 4 is right")
    before = uncopied(b)
    # What is under way is sent again, from where it lies.
    lab.network.cut("b")
    b.shell(f"sleep {CUT_S}")
    lab.network.mend()
    more_rounds(a, job)
    during = uncopied(b, before)
    # The connection is reset: what the peer has not acknowledged comes over the next one, from the same place.
    b.shell("ss -K state established '( sport != :7411 and dport != :7411 )'")
    more_rounds(a, job, 4)
    after = uncopied(b, during)
    a.run("touch", f"/run/enough.{job}")
    job_until(a, job, "succeeded")
    rounds = rounds_of(a, job)
    mib = [round(each / 2**20) for each in (before, during, after)]
    tell(f"{rounds} vectors of {MIB} MiB came back; without a copy {mib} MiB before and after a cut, and at last")
