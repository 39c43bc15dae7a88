"""Soft-RoCE of the kernel does what RDMA of CUDA calls leans upon: it passes what the tests' own device passes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.guest import Guest, Machine, patient
from tests.lab.image import KERNELS
from tests.lab.nodes import Lab
from tests.verbs.fake import build_contract, missing
from tests.verbs.test_contract import CASES

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(patient(1800)),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]

LINK = "enp0s16"
PROGRAM = "/var/tmp/contract"
PORT = "7470"
NEAR, FAR = "10.9.0.1", "10.9.0.2"

CONTRACT_LIMIT_S = patient(600)
"""All cases, each packet of which is emulated on both sides."""


@pytest.fixture(scope="module", params=KERNELS)
def guests(
    request: pytest.FixtureRequest, lab: Lab, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Guest, Guest]]:
    """Two with the same kernel and a device of soft-RoCE each."""
    program = build_contract(tmp_path_factory.mktemp("verbs") / "contract")
    for name in "ab":
        lab.discard(name)
    both = lab.nodes("a", "b", machine=Machine(kernel=request.param, cables=1))
    for guest in both:
        guest.copy_in(program, PROGRAM)
        guest.shell(f"modprobe rdma_rxe; rdma link add rxe0 type rxe netdev {LINK}")
    yield both[0], both[1]
    for name in "ab":
        lab.discard(name)


def agree(near: Guest, far: Guest, address: str, peer: str) -> None:
    """Run both sides of the program, on two guests or on one."""
    listening = far.start(PROGRAM, "listen", peer, PORT, limit_s=CONTRACT_LIMIT_S)
    far.until(f"ss -Hltn 'sport = {PORT}' | grep .")
    called = near.run(PROGRAM, "call", address, peer, PORT, *CASES, check=False, limit_s=CONTRACT_LIMIT_S)
    listened = listening.wait(check=False)
    assert (called.code, listened.code) == (0, 0), f"{called}{listened}"
    assert called.stdout.splitlines() == [f"{case}: ok" for case in CASES]
    assert listened.stdout.splitlines()[1:] == [f"{case}: ok" for case in CASES if case != "peer_ends"]


def test_soft_roce_keeps_the_contract_within_a_guest(guests: tuple[Guest, Guest]) -> None:
    near, _ = guests
    agree(near, near, NEAR, NEAR)


def test_soft_roce_keeps_the_contract_between_guests(guests: tuple[Guest, Guest]) -> None:
    near, far = guests
    agree(near, far, NEAR, FAR)
