"""The scheduler is killed at every write of a volume, before and after it: what was asked for goes on."""

from __future__ import annotations

import itertools

import pytest

from farbus.model.states import VolumeState
from farbus.scheduler import events
from tests.scheduler.scripted import GIB, Cluster, storing
from tests.scheduler.test_moves_killed import Killed


class Mortal(Cluster):
    """A cluster whose scheduler dies at one of its writes of volumes, leases or attachments, once."""

    def __init__(self, *nodes: object, number: int, written: bool) -> None:
        self.writes = itertools.count()
        self.number, self.written = number, written
        self.armed = False
        self.detached = False
        """Whether it was attached once, and is to be so no more."""
        super().__init__(*nodes)  # type: ignore[arg-type]

    def tell(self, event: events.Event) -> None:
        if not self.armed:
            super().tell(event)
            return
        effects = self.machine.handle(event, now=self.now, wall=self.wall)
        kinds = events.PersistVolume | events.PersistLease | events.PersistJob
        if any(isinstance(effect, kinds) for effect in effects) and next(self.writes) == self.number:
            self.armed = False
            if self.written:
                # One transaction: all of it is there, and nothing has been sent.
                for effect in effects:
                    if isinstance(effect, events.Persist):
                        self.memory.write(effect)
            self.restart()
            raise Killed
        self.carry_out(effects)


def live(number: int, *, written: bool, refused: bool) -> tuple[Mortal, int]:
    """Make a volume of two parts, enlarge it, attach it, detach it and delete it, whatever is forgotten meanwhile.

    Where the second node refuses to make its part, that is the end of it.
    """
    cluster = Mortal(storing("a", 1), storing("b", 1), number=number, written=written)
    if refused:
        cluster.agents["b"].refuses[events.MakeVolume] = "no"
    cluster.join()
    cluster.armed = True
    for _ in range(100):
        try:
            for agent in cluster.agents.values():
                if not agent.session:
                    cluster.join(agent.name)
            cluster.settle()
            if take_next_step(cluster):
                break
        except Killed:
            continue
    else:
        raise AssertionError("it does not come to an end")
    return cluster, next(cluster.writes)


def take_next_step(cluster: Mortal) -> bool:
    """Ask for what comes next, as who watches would; say whether all of it is done."""
    record = cluster.machine.volumes.get("data")
    if record is None:
        if cluster.memory.gone_volumes:
            return True
        cluster.create(stripe=2)
    elif record.volume.is_changing:
        cluster.pass_time(5)
    elif record.volume.size_bytes == 10 * GIB:
        cluster.tell(events.VolumeResizeAsked(name="data", size_bytes=40 * GIB, by="ada"))
    elif "j1" not in cluster.machine.jobs and not cluster.detached:
        cluster.attach("data", "b")
    elif "j1" in cluster.machine.jobs:
        if cluster.volume().state is VolumeState.ATTACHED:
            cluster.detached = True
            cluster.tell(events.JobCancelled(job_id="j1", reason="detached", released=True))
        else:
            cluster.pass_time(5)
    else:
        cluster.tell(events.VolumeDeletionAsked(name="data", by="ada"))
    return False


@pytest.mark.parametrize("written", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("refused", [False, True], ids=["made", "taken-back"])
def test_a_volume_lives_whenever_the_scheduler_dies(written: bool, refused: bool) -> None:
    _, writes = live(-1, written=written, refused=refused)
    assert writes > (3 if refused else 12)
    for number in range(writes):
        cluster, _ = live(number, written=written, refused=refused)
        assert not cluster.memory.volumes, number
        assert not cluster.memory.leases, number
        assert not any(agent.parts for agent in cluster.agents.values()), number
        assert not any(agent.device_side or agent.client_side for agent in cluster.agents.values()), number
        assert not any(device.shares for device in cluster.machine.devices.values()), number
        assert len(cluster.memory.gone_volumes) == 1, number
        for agent in cluster.agents.values():
            cluster.tell(agent.inventory())
        assert cluster.machine.volume_statuses() == ()
