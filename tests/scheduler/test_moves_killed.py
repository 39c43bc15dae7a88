"""The scheduler is killed at every write of a move, before and after it: the move goes on, and no device is lost."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from farbus.model.move import MoveState, NodeMove
from farbus.model.states import DeviceState
from farbus.scheduler import events
from tests.scheduler.scripted import Cluster, node

MOVED = "GPU-a-0"


class Killed(Exception):
    """The scheduler is dead."""


class Mortal(Cluster):
    """A cluster whose scheduler dies at one of its writes of moves, once, or without a number at none."""

    def __init__(self, *nodes: object, number: int, written: bool) -> None:
        self.writes = itertools.count()
        self.number, self.written = number, written
        self.armed = False
        super().__init__(*nodes)  # type: ignore[arg-type]

    def tell(self, event: events.Event) -> None:
        if self.armed:
            self.armed = False
            effects = self.machine.handle(event, now=self.now, wall=self.wall)
            self.armed = True
            moves = any(isinstance(effect, events.PersistMove) for effect in effects)
            if moves and next(self.writes) == self.number:
                self.armed = False
                if self.written:
                    # One transaction: all of it is there, and nothing has been sent.
                    for effect in effects:
                        if isinstance(effect, events.Persist):
                            self.memory.write(effect)
                self.restart()
                raise Killed
            self.carry_out(effects)
        else:
            super().tell(event)


def run_move(number: int, *, written: bool, refused: bool) -> tuple[Mortal, int]:
    """Move the device from a to b, where b may refuse it; return the cluster and how often moves were written."""
    cluster = Mortal(node("a", 1), node("b"), number=number, written=written)
    cluster.give_fabric()
    cluster.join()
    cluster.read_chassis()
    cluster.armed = True
    asked = False
    for _ in range(100):
        try:
            for agent in cluster.agents.values():
                if not agent.session:
                    cluster.join(agent.name)
            cluster.read_chassis()
            if not cluster.memory.moves and not cluster.memory.ended_moves:
                asked = True
                cluster.move(MOVED, "b")
            for name, agent in cluster.agents.items():
                command = agent.inbox[0] if agent.inbox else None
                if refused and name == "b" and isinstance(command, events.AttachDevice):
                    agent.inbox.pop(0)
                    outcome = agent.answer(command, error="no room")
                    cluster.tell(msgspec.structs.replace(outcome, move=NodeMove()))
                else:
                    cluster.step(name)
        except Killed:
            continue
        if asked and cluster.memory.ended_moves and not any(agent.inbox for agent in cluster.agents.values()):
            break
    for agent in cluster.agents.values():
        cluster.tell(agent.inventory())
    return cluster, next(cluster.writes)


@pytest.mark.parametrize("written", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("refused", [False, True], ids=["done", "taken-back"])
def test_a_move_goes_on_whenever_the_scheduler_dies(written: bool, refused: bool) -> None:
    _, writes = run_move(-1, written=written, refused=refused)
    # Asked, given away, (given back,) ended.
    assert writes == (4 if refused else 3)
    for number in range(writes):
        cluster, _ = run_move(number, written=written, refused=refused)
        (move,) = cluster.memory.ended_moves.values()
        assert move.state is (MoveState.UNDONE if refused else MoveState.DONE), (number, move)
        assert not cluster.memory.moves
        (status,) = cluster.machine.device_statuses()
        assert (status.node, status.state) == ("a" if refused else "b", DeviceState.FREE), number
        fabric = cluster.agents["a"].fabric
        assert fabric is not None
        assert fabric.at[MOVED] == status.node
        assert status.epoch == move.epoch == 1
