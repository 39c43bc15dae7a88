"""Any order of exports and withdrawals, cut off anywhere: nobody else's is touched, and nothing is left half made."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from farbus.errors import FarbusError
from farbus.model.nvmeof import Export
from farbus.model.nvmet import Target
from farbus.nvmeof.comparison import differences, our_subsystems
from tests.nvmeof.target_harness import HERE, THEIR_ADDRESS, THERE, Node

DEVICES = ("a", "b", "c")
ADDRESSES = (HERE, THERE, THEIR_ADDRESS)


class CutOff(BaseException):
    """The process has ended, for all that anybody can tell."""


def cut_off_at(point: int) -> Callable[[], None]:
    points = iter(range(point))

    def passing() -> None:
        if point >= 0 and next(points, None) is None:
            raise CutOff

    return passing


def moves() -> st.SearchStrategy[tuple[str, str, int, list[str], list[int], bool, int]]:
    return st.tuples(
        st.sampled_from(["offer", "offer", "withdraw"]),
        st.sampled_from(["one", "two"]),
        st.integers(1, 3),
        st.lists(st.sampled_from(DEVICES), min_size=1, max_size=2, unique=True),
        st.lists(st.integers(0, 2), min_size=1, max_size=2, unique=True),
        st.booleans(),
        # At which call it is cut off; most go to their ends.
        st.one_of(st.just(-1), st.integers(0, 60)),
    )


@settings(max_examples=25, deadline=None)
@given(st.lists(moves(), max_size=8))
def test_any_history_leaves_whole_subsystems_and_nobody_elses_touched(
    history: list[tuple[str, str, int, list[str], list[int], bool, int]],
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(_live(Node(Path(directory)), history))


async def _live(node: Node, history: list[tuple[str, str, int, list[str], list[int], bool, int]]) -> None:
    node.add_foreign()
    foreign = node.foreign()
    held: dict[str, Export] = {}
    for verb, lease, epoch, devices, addresses, authenticated, cut in history:
        export = node.export(
            lease, epoch, devices, addresses=tuple(ADDRESSES[one] for one in addresses), authenticated=authenticated
        )
        node.nvmet.passing = cut_off_at(cut)
        try:
            if verb == "offer":
                await node.offer(export)
                for older in [name for name in held if held[name].name.lease == lease]:
                    del held[older]
                held[export.nqn] = export
            else:
                await node.end(export.name)
                held.pop(export.nqn, None)
        except (CutOff, FarbusError):
            node.nvmet.passing = lambda: None
            # What is recorded as begun is taken back, one that was offered before with it.
            if verb == "withdraw" or export.nqn not in held or differences(node.target(), held[export.nqn]):
                await node.withdraw(export)
                held.pop(export.nqn, None)
        node.nvmet.passing = lambda: None
        target = node.target()
        assert node.foreign() == foreign
        # An older epoch may have ended for one that did not come to be.
        held = {nqn: one for nqn, one in held.items() if target.subsystem(nqn) is not None}
        assert {name.nqn for name in our_subsystems(target)} == set(held)
        for one in held.values():
            assert differences(target, one) == ()
        assert {nqn for port in target.ports if port.is_ours for nqn in port.subsystems} == set(held)
        assert all(port.subsystems for port in target.ports if port.is_ours)
        assert {host.nqn for host in target.hosts if "farbus" in host.nqn} == {
            one.name.host_nqn for one in held.values()
        }
    for one in list(held.values()):
        await node.end(one.name)
    assert node.target() == foreign
    assert foreign != Target()
