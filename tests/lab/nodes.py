"""A lab: nodes a, b, c and on, joined by a network that can be cut, with Farbus in them where a test wants it.

::

    def test_something(lab: Lab) -> None:
        a, b = lab.nodes("a", "b")
        lab.network.cut("a", "b")
        a.power_off()

    def test_of_a_cluster(lab: Lab) -> None:
        a, b, c = lab.cluster("a", "b", "c")  # the scheduler on a, an agent on each

Nodes are :class:`tests.lab.guest.Guest`; they go on from snapshots, so that they are there within seconds.  What a
test leaves in a node, the next test of its module finds there.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Self

from tests.lab.cable import Cable
from tests.lab.cluster import INSTALL_LIMIT_S, JOB_LIMIT_S, PUT_IN, RESIDENT, nodes_are_ready, put_in
from tests.lab.guest import Guest, Machine, Snapshot, patient
from tests.lab.image import ADDRESSES
from tests.lab.snapshot import ClusterStart, Layer, ensure_cluster, ensure_snapshot

NODE = Machine(cables=1)
"""What a node is where a test asks for nothing else."""

RESTART_GRACE_S = patient(300.0)
"""How long an agent that was stopped may take to start again: minutes, where others want the processor, too."""

SET_UP = """
/opt/farbus/bin/python -c 'if True:
    # In one process: each start of the command takes several seconds here.
    import sys
    from farbus.cli import main
    for line in sys.stdin:
        assert not main(line.split()), line
' <<'END'
{commands}
END
# A restart of an agent takes longer here than the leases of a real cluster last.  A node that was rebooted is let in by
# then at the latest, also where nobody saw its old session end.
sed -i 's/^# lease_ttl_s.*/lease_ttl_s = 300.0/' /etc/farbus/scheduler.toml
sed -i 's/^# restart_grace_s.*/restart_grace_s = {restart_grace_s}/' /etc/farbus/scheduler.toml
sed -i 's/^# operator_nodes.*/operator_nodes = ["{first}"]/' /etc/farbus/scheduler.toml
"""


def farbus_layer(wheel: Path) -> Layer:
    """Return what puts Farbus into a node: the wheel, its services, and certificates for all nodes of a lab."""
    first, *_ = ADDRESSES
    commands = [
        "install scheduler",
        f"install agent --scheduler {first}:7411",
        "ca init",
        f"ca issue {first} --role scheduler --out /etc/farbus/scheduler",
        *(f"ca issue {name} --role node --out /etc/farbus/nodes/{name}" for name in ADDRESSES),
    ]
    script = SET_UP.format(commands="\n".join(commands), first=first, restart_grace_s=RESTART_GRACE_S)

    def make(guest: Guest) -> None:
        put_in(guest, wheel)
        guest.shell(script, limit_s=INSTALL_LIMIT_S)

    content = hashlib.sha256((PUT_IN + script).encode())
    with zipfile.ZipFile(wheel) as archive:
        for entry in sorted(archive.infolist(), key=lambda entry: entry.filename):
            content.update(f"{entry.filename} {entry.CRC}".encode())
    # Certificates last for a limited time.
    return Layer(f"{content.hexdigest()} {time.strftime('%Y-%m')}", make)


START = """
# How long a unit may take to start is its own affair, and is as much too short here as all else.
for unit in {services}; do
    mkdir -p /run/systemd/system/$unit.service.d
    printf '[Service]\\nTimeoutStartSec={limit_s:g}\\n' > /run/systemd/system/$unit.service.d/lab.conf
done
systemctl daemon-reload
cp /etc/farbus/nodes/{name}/* /etc/farbus/node/
[ {gpus} = 0 ] || sed -i 's/^# softgpu =.*/softgpu = "count={gpus},mem=256MiB"/' /etc/farbus/agent.toml
systemctl start {services}
"""


def cluster_start(gpus: Mapping[str, int]) -> ClusterStart:
    """Return what starts the scheduler on the first node and an agent, with so many software GPUs, on each."""

    def run(guests: Sequence[Guest]) -> None:
        starting = []
        for guest in guests:
            services = "farbus-scheduler farbus-agent" if guest is guests[0] else "farbus-agent"
            script = START.format(name=guest.name, gpus=gpus.get(guest.name, 0), services=services, limit_s=JOB_LIMIT_S)
            starting.append(guest.start("bash", "-ec", script, limit_s=JOB_LIMIT_S))
        for one in starting:
            one.wait()
        nodes_are_ready(guests[0], len(guests))

    return ClusterStart(f"{START} {sorted(gpus.items())} {RESIDENT.read_text()}", run)


def _nobody_hears(_: str) -> None:
    """Do nothing."""


class Effort(NamedTuple):
    """What it took until nodes could be used, all in seconds; not the making of their snapshots."""

    clock_s: float
    processor_s: float
    """Of this machine's processors: QEMU's, and the lab's own."""

    def __str__(self) -> str:
        return f"after {self.clock_s:.0f} s, with {self.processor_s:.0f} s of the processor"


class Lab:
    """Nodes, and the network that joins them; use it as a context manager."""

    def __init__(self, image: Path, wheel: Callable[[], Path], tell: Callable[[str], object] = _nobody_hears) -> None:
        """``wheel`` returns the file of Farbus's own; it is called where a node needs it.

        ``tell`` hears what it took until nodes could be used.
        """
        self.network = Cable()
        self.effort = Effort(0.0, 0.0)
        """What the nodes took that were asked for last and were not there yet."""
        self._tell = tell
        self._image = image
        self._wheel = wheel
        self._nodes: dict[str, Guest] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for guest in self._nodes.values():
            guest.stop()

    def node(self, name: str, machine: Machine = NODE, *, farbus: bool = False) -> Guest:
        """Return a node, restored now where it is not there; one that is there stays what it is."""
        return self.nodes(name, machine=machine, farbus=farbus)[0]

    def nodes(self, *names: str, machine: Machine = NODE, farbus: bool = False) -> tuple[Guest, ...]:
        """Return nodes, those that are not there restored now, side by side."""
        new = [name for name in names if name not in self._nodes]
        if new:
            layers = [farbus_layer(self._wheel())] if farbus else []
            snapshot = ensure_snapshot(self._image, machine, layers)
            with self._all_or_none(new), self._measured(new):
                self._wait([self._restore(name, machine, snapshot) for name in new])
        return tuple(self._nodes[name] for name in names)

    def discard(self, name: str) -> None:
        """End a node for good where it is there; the next one of this name is a new one."""
        if guest := self._nodes.pop(name, None):
            guest.stop()

    def cluster(self, *names: str, machine: Machine = NODE, gpus: Mapping[str, int] | None = None) -> tuple[Guest, ...]:
        """Return nodes with a running agent in each and the scheduler in the first one, which is ``a``.

        ``gpus`` says how many software GPUs a node has.
        """
        assert names[0] == next(iter(ADDRESSES)), "the certificates are made for a scheduler on a"
        assert not set(names) & set(self._nodes), "nodes of a cluster are restored together"
        snapshots = ensure_cluster(
            self._image,
            machine,
            [farbus_layer(self._wheel())],
            {name: f"{ADDRESSES[name]}/24" for name in names},
            cluster_start(gpus or {}),
        )
        with self._all_or_none(names), self._measured(names):
            guests = tuple(self._restore(name, machine, snapshots[name]) for name in names)
            self._wait(guests)
            nodes_are_ready(guests[0], len(guests))
        return guests

    @contextlib.contextmanager
    def _all_or_none(self, names: Sequence[str]) -> Iterator[None]:
        """End all of these nodes where one can't be restored: the next test would take the others for whole ones."""
        try:
            yield
        except BaseException as error:
            for name in names:
                if guest := self._nodes.pop(name, None):
                    guest.__exit__(type(error), error, error.__traceback__)
            raise

    @contextlib.contextmanager
    def _measured(self, names: Sequence[str]) -> Iterator[None]:
        """Measure what it takes to restore nodes, and tell."""
        clock_s, own_s = time.monotonic(), time.process_time()
        yield
        qemu_s = sum(self._nodes[name].processor_s() for name in names)
        self.effort = Effort(time.monotonic() - clock_s, qemu_s + time.process_time() - own_s)
        self._tell(f"{', '.join(names)}: ready {self.effort}")

    def _restore(self, name: str, machine: Machine, snapshot: Snapshot) -> Guest:
        """Begin to restore a node."""
        self._nodes[name] = Guest(
            self._image,
            machine,
            name=name,
            join=[self.network, *(Cable() for _ in range(machine.cables - 1))],
            address=f"{ADDRESSES[name]}/24",
            snapshot=snapshot,
        )
        return self._nodes[name]

    @staticmethod
    def _wait(guests: Iterable[Guest]) -> None:
        """Wait side by side until nodes run commands."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda guest: guest.wait_for_boot(), guests))
