"""The leases of the node's machine, both sides of them: pure, as all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from farbus.agent.actions import (
    Answer,
    PrepareClient,
    PrepareDevices,
    RecordFence,
    ReportClientEnded,
    ReportLeaseEnded,
    UnprepareClient,
    UnprepareDevices,
)
from farbus.agent.events import (
    ActionDone,
    ClientReleased,
    ClientRequested,
    DevicesReleased,
    DevicesRequested,
    DevicesVanished,
    LeasesRenewed,
    NodeRestored,
    PreparedLease,
    RestoredClient,
    RestoredDevices,
    SupervisorDied,
)
from farbus.agent.names import ROOM, ROOM_FENCES
from farbus.agent.objects import (
    MAX_OBJECTS,
    Actions,
    ClientSide,
    Desk,
    DeviceSide,
    Held,
    Key,
    LeaseSide,
    Side,
    SideState,
    Task,
    claims,
    same_lease,
    same_leases,
)
from farbus.agent.tasks import Tasks
from farbus.errors import InvalidInput
from farbus.model.device import Route, whole_of
from farbus.model.lease import Lease
from farbus.model.nvmeof import transport_addresses

HOLD_GRACE_S = 15.0
"""How long an interactive job's devices wait for its holder: it is there, or dials again at once when this agent was
restarted."""


class Leases:
    """All sides of leases on one node.  A task that uses one ends before the side does."""

    def __init__(self, *, node: str, desk: Desk, tasks: Tasks) -> None:
        self._node = node
        self._desk = desk
        self._tasks = tasks
        self._devices: dict[str, DeviceSide] = {}
        self._clients: dict[Key, ClientSide] = {}
        self._holders: dict[str, str] = {}
        """The lease that has each device."""
        self._fences: dict[str, int] = {}
        """The least epoch of each device that is not stale."""
        self._closed: dict[str, str] = {}
        """Why no new lease may have each device."""
        self.ttl_s = 0.0

    # Questions.

    def held(self) -> tuple[Held, ...]:
        """Return every lease of which this node holds a side, also one that it is giving up."""
        devices = [
            Held(lease=side.lease, device_side=True, endpoint=side.endpoint, trouble=_trouble(side))
            for side in self._devices.values()
        ]
        clients = [
            Held(lease=prepared.lease, device_side=False, endpoint=prepared.endpoint, trouble=_trouble(side))
            for side in self._clients.values()
            for prepared in side.leases
        ]
        return (*devices, *clients)

    def sides(self) -> Iterator[LeaseSide]:
        """Yield both kinds of side of every lease that this node holds, with its time."""
        for side in self._devices.values():
            yield LeaseSide(side.lease, True, side.wanted, side.expires_at)
        for client in self._clients.values():
            for prepared in client.leases:
                yield LeaseSide(prepared.lease, False, client.wanted, client.expires_at[prepared.lease.id])

    def clients(self) -> tuple[Key, ...]:
        """Return (job, task) of every client side that this node holds."""
        return tuple(self._clients)

    def client(self, key: Key) -> ClientSide | None:
        """Return a task's side of its leases."""
        return self._clients.get(key)

    def next_expiry(self) -> float | None:
        """Return the monotonic time at which one ends first if nothing comes; None when none is held."""
        times = [side.expires_at for side in self._devices.values() if side.wanted]
        for client in self._clients.values():
            if client.wanted:
                times += client.expires_at.values()
                times += [client.unclaimed_until] if client.unclaimed_until is not None else []
        return min(times, default=None)

    def is_giving_up(self) -> bool:
        """Say whether a side is not wanted any more, and not wedged."""
        sides = (*self._devices.values(), *self._clients.values())
        return any(not side.wanted and side.state is not SideState.WEDGED for side in sides)

    def validate(self) -> None:
        """Assert what must hold between events."""
        for side in (*self._devices.values(), *self._clients.values()):
            assert side.state is not SideState.ABSENT, f"{side.name}: kept though absent"
            assert (side.serial in self._desk) == side.is_busy, f"{side.name}: {side.state} without its work"
            waits = self._task_in_the_way(side) is not None or self._client_in_the_way(side) is not None
            going = side.is_busy or side.state is SideState.WEDGED or waits
            assert side.wanted or going, f"{side.name}: not wanted, and nothing is done about it"
            assert not (side.preparers and side.state is SideState.PREPARED and side.wanted), f"{side.name}: unanswered"
        claimed = [(name, side.lease.id) for side in self._devices.values() for name in claims(side.lease)]
        assert dict(claimed) == self._holders, "devices and leases differ"
        assert len(claimed) == len(self._holders), "a device has two leases"

    # Restart.

    def restore(self, event: NodeRestored) -> Actions:
        """Take over what an earlier agent held; give up what is not observed any more."""
        self.ttl_s = event.lease_ttl_s
        self._fences = dict(event.fences)
        self._closed = dict(event.closed)
        until = event.now + self.ttl_s
        for devices in event.devices:
            self._restore_devices(devices, until)
        for restored in event.clients:
            self._restore_client(restored, until, event.now)
        for client in list(self._clients.values()):
            if not client.wanted:
                yield from self._advance_client(client)
        for side in list(self._devices.values()):
            if not side.wanted:
                yield from self._advance_devices(side)

    def _restore_devices(self, restored: RestoredDevices, until: float) -> None:
        lease = restored.lease
        side = DeviceSide(name=f"lease {lease.id}", lease=lease, endpoint=restored.endpoint, expires_at=until)
        self._devices[lease.id] = side
        self._holders |= dict.fromkeys(claims(lease), lease.id)
        _restore_side(side, restored.lost)

    def _restore_client(self, restored: RestoredClient, until: float, now: float) -> None:
        side = ClientSide(
            name=f"client {restored.job}/{restored.task}",
            job=restored.job,
            task=restored.task,
            user=restored.user,
            leases=restored.leases,
            interactive=restored.interactive,
            attachment=restored.attachment,
            environment=restored.environment,
            expires_at={prepared.lease.id: until for prepared in restored.leases},
            unclaimed_until=now + HOLD_GRACE_S if restored.interactive else None,
        )
        self._clients[side.key] = side
        _restore_side(side, restored.lost)

    # The device side.

    def devices_requested(self, event: DevicesRequested) -> Actions:
        """Serve a lease's devices, once."""
        lease = event.lease
        side = self._devices.get(lease.id)
        if side is None:
            if error := self._refusal(lease):
                yield Answer(command=event.command, ok=False, error=error)
                return
            side = DeviceSide(name=f"lease {lease.id}", lease=lease)
            side.expires_at = event.now + self.ttl_s
            side.preparers.append(event.command)
            self._devices[lease.id] = side
            for claim, epoch in claims(lease).items():
                self._holders[claim] = lease.id
                if not claim.startswith(ROOM):
                    self._fences[claim] = epoch
            yield from self._prepare_devices(side)
        elif not same_lease(side.lease, lease):
            error = side.told(f"lease {lease.id} is held with other devices or another secret")
            yield Answer(command=event.command, ok=False, error=error)
        elif not side.wanted:
            error = side.told(f"lease {lease.id} is being given up on {self._node}")
            yield Answer(command=event.command, ok=False, error=error)
        else:
            # The secret may not have been known: it is not in the journal.
            side.lease = lease
            if side.state is SideState.PREPARED:
                side.expires_at = max(side.expires_at, event.now + self.ttl_s)
                yield Answer(command=event.command, ok=True, endpoint=side.endpoint)
            else:
                side.preparers.append(event.command)

    def _refusal(self, lease: Lease) -> str:
        """Say why a lease that is not held can't be; an empty string when it can."""
        if len(self._devices) >= MAX_OBJECTS:
            return f"node {self._node} holds {MAX_OBJECTS} leases"
        for leased in lease.devices:
            if (reason := self._closed.get(whole_of(leased.device))) is not None:
                return f"device {leased.device} is closed on {self._node}: {reason}"
        for claim, epoch in claims(lease).items():
            if (holder := self._holders.get(claim)) is not None:
                return self._devices[holder].told(f"device {claim} is held by lease {holder} on {self._node}")
            if epoch < (least := self._fences.get(claim, 0)):
                return (
                    f"lease {lease.id} is stale: its epoch of device {claim} is {epoch},"
                    f" and {least} is the least that node {self._node} serves"
                )
        return ""

    def _prepare_devices(self, side: DeviceSide) -> Actions:
        def done(event: ActionDone) -> Actions:
            side.endpoint = event.endpoint
            yield from self._prepared(side, event, self._advance_devices)

        side.go(SideState.PREPARING)
        side.serial = self._desk.ask(done)
        yield PrepareDevices(serial=side.serial, lease=side.lease)

    def devices_released(self, event: DevicesReleased) -> Actions:
        """Give a lease's devices up; confirmed once nobody uses them by it."""
        side = self._devices.get(event.lease_id)
        if side is None:
            yield Answer(command=event.command, ok=True)
            return
        yield from self._fence(side)
        side.wanted = False
        side.unpreparers.append(event.command)
        side.retry = True
        yield from self._advance_devices(side)

    def _fence(self, side: DeviceSide) -> Actions:
        """See to it that a lease which is over can't be had again: a request for it may still be on its way."""
        epochs = {claim: epoch + 1 for claim, epoch in claims(side.lease).items()}
        if any(self._fences.get(claim, 0) < epoch for claim, epoch in epochs.items()):
            self._fences |= epochs
            self._forget_rooms()
            yield RecordFence(epochs=epochs)

    def _forget_rooms(self) -> None:
        """Drop fences of rooms that ended long ago: unlike devices they never come again."""
        rooms = [claim for claim in self._fences if claim.startswith(ROOM)]
        for claim in rooms[:-ROOM_FENCES]:
            del self._fences[claim]

    def _advance_devices(self, side: DeviceSide) -> Actions:
        """Take the next step towards what is wanted."""
        if side.wanted:
            if side.state is SideState.PREPARED:
                yield from _answer(side.preparers, ok=True, endpoint=side.endpoint)
            return
        if self._must_wait(side):
            return
        # A local route ends only with the program that uses the device by it.
        if (task := self._task_in_the_way(side)) is not None:
            yield from self._tasks.stop(task, grace_s=0.0, reason=side.ended or "its lease was released")
            return
        # What is mounted here goes before what it stands on.
        if (client := self._client_in_the_way(side)) is not None:
            if client.wanted:
                client.wanted, client.ended = False, side.ended or "its lease was released"
                yield from self._advance_client(client)
            return

        def forget() -> None:
            del self._devices[side.lease.id]
            for claim in claims(side.lease):
                del self._holders[claim]

        def done(event: ActionDone) -> Actions:
            yield from self._unprepared(side, event, forget)

        side.go(SideState.UNPREPARING)
        side.serial = self._desk.ask(done)
        yield UnprepareDevices(serial=side.serial, lease=side.lease)

    def supervisor_died(self, event: SupervisorDied) -> Actions:
        """End a lease whose server is gone, also while its preparation is still being recorded."""
        side = self._devices.get(event.lease_id)
        if side is not None and side.wanted:
            side.wanted, side.ended = False, event.reason
            yield from self._advance_devices(side)

    def devices_vanished(self, event: DevicesVanished) -> Actions:
        """End the leases of devices that are gone."""
        for device in event.devices:
            having = [
                side.lease.id
                for side in self._devices.values()
                if any(leased.device == device for leased in side.lease.devices)
            ]
            yield from self.end(having, f"device {device} is gone from node {self._node}")

    # Devices that are being moved.

    def is_closed(self, device: str) -> bool:
        """Say whether no new lease may have a device."""
        return device in self._closed

    def close(self, device: str, reason: str) -> Actions:
        """Give a device to no new lease, nor a share of it; the one that has it keeps it."""
        self._closed[device] = reason
        return iter(())

    def open(self, device: str) -> Actions:
        """Let it be given again."""
        self._closed.pop(device, None)
        return iter(())

    # The client side.

    def client_requested(self, event: ClientRequested) -> Actions:
        """Prepare a task's side of its leases, once."""
        key = (event.job, event.task)
        side = self._clients.get(key)
        if told := _no_place(event.leases):
            # Before anything is held, and anything has to be given up.
            yield Answer(command=event.command, ok=False, error=told)
        elif side is None:
            if (task := self._tasks.alive(key)) is not None:
                error = task.told(f"task {event.job}/{event.task} runs already")
                yield Answer(command=event.command, ok=False, error=error)
                return
            if len(self._clients) >= MAX_OBJECTS:
                yield Answer(command=event.command, ok=False, error=f"node {self._node} has {MAX_OBJECTS} clients")
                return
            side = ClientSide(
                name=f"client {event.job}/{event.task}",
                job=event.job,
                task=event.task,
                user=event.user,
                leases=event.leases,
                interactive=event.interactive,
                attachment=event.attachment,
                expires_at={prepared.lease.id: event.now + self.ttl_s for prepared in event.leases},
                # Who asked for it may be gone already, and could tell nobody while there was no agent.
                unclaimed_until=event.now + HOLD_GRACE_S if event.interactive else None,
            )
            side.preparers.append(event.command)
            self._clients[key] = side
            yield from self._prepare_client(side)
        elif not same_leases(side.leases, event.leases) or side.user != event.user:
            error = side.told(f"{side.name} is held with other leases")
            yield Answer(command=event.command, ok=False, error=error)
        elif not side.wanted:
            error = side.told(f"{side.name} is being given up on {self._node}")
            yield Answer(command=event.command, ok=False, error=error)
        else:
            side.leases = event.leases
            if side.state is SideState.PREPARED:
                yield Answer(command=event.command, ok=True, environment=side.environment)
            else:
                side.preparers.append(event.command)

    def _prepare_client(self, side: ClientSide) -> Actions:
        def done(event: ActionDone) -> Actions:
            side.environment = event.environment
            yield from self._prepared(side, event, self._advance_client)

        side.go(SideState.PREPARING)
        side.serial = self._desk.ask(done)
        yield PrepareClient(
            serial=side.serial,
            job=side.job,
            task=side.task,
            user=side.user,
            leases=side.leases,
            interactive=side.interactive,
            attachment=side.attachment,
        )

    def client_released(self, event: ClientReleased) -> Actions:
        """Give a task's side up: the task first, if it still runs."""
        key = (event.job, event.task)
        side = self._clients.get(key)
        if side is None:
            yield from self._tasks.released(event.command, key)
            return
        self._tasks.release(key)
        side.wanted = False
        side.unpreparers.append(event.command)
        side.retry = True
        yield from self._advance_client(side)

    def _advance_client(self, side: ClientSide) -> Actions:
        if side.wanted:
            if side.state is SideState.PREPARED:
                yield from _answer(side.preparers, ok=True, environment=side.environment)
            return
        if self._must_wait(side):
            return
        if (task := self._task_in_the_way(side)) is not None:
            yield from self._tasks.stop(task, grace_s=0.0, reason=side.ended or "the scheduler has released it")
            return

        def done(event: ActionDone) -> Actions:
            yield from self._unprepared(side, event, lambda: self._clients.pop(side.key))
            if side.key not in self._clients:
                yield from self._tasks.forget(side.key)
            yield from self._after_client(side)

        side.go(SideState.UNPREPARING)
        side.serial = self._desk.ask(done)
        yield UnprepareClient(
            serial=side.serial,
            job=side.job,
            task=side.task,
            user=side.user,
            leases=side.leases,
            attachment=side.attachment,
            # What is over by itself may be another's already: there is nothing to be saved for who still holds it.
            force=bool(side.ended),
        )

    def hold_claimed(self, key: Key) -> Actions:
        """Note that an interactive job has its holder again."""
        if (side := self._clients.get(key)) is not None:
            side.unclaimed_until = None
        return iter(())

    # Both sides.

    def _must_wait(self, side: Side) -> bool:
        if side.state is SideState.PREPARING:
            return side.serial in self._desk
        return side.state is SideState.UNPREPARING or (side.state is SideState.WEDGED and not side.retry)

    def _task_in_the_way(self, side: Side) -> Task | None:
        """Return the task that must end before the side can."""
        if isinstance(side, ClientSide):
            return self._tasks.alive(side.key)
        assert isinstance(side, DeviceSide)
        if side.lease.route is not Route.LOCAL or side.state is SideState.PREPARING:
            return None
        return self._tasks.alive((side.lease.job, side.lease.task))

    def _client_in_the_way(self, side: Side) -> ClientSide | None:
        """Return the client side on this node that has the storage of a device side; not one that is wedged."""
        if not isinstance(side, DeviceSide) or side.lease.storage is None or side.lease.route is not Route.LOCAL:
            return None
        if side.state is SideState.PREPARING:
            # It never came to be: there was nothing to be had of it.
            return None
        for client in self._clients.values():
            if side.lease.id in client.expires_at and client.state is not SideState.WEDGED:
                return client
        return None

    def _after_client(self, client: ClientSide) -> Actions:
        """Go on with the device sides that waited for a client side: it is gone, or wedged."""
        for prepared in client.leases:
            side = self._devices.get(prepared.lease.id)
            if side is not None and not side.wanted and side.lease.storage is not None:
                side.retry = True
                yield from self._advance_devices(side)

    def after_exit(self, key: Key) -> Actions:
        """Go on with the sides that waited for a task to end."""
        client = self._clients.get(key)
        if client is not None and not client.wanted:
            yield from self._advance_client(client)
        for side in list(self._devices.values()):
            if not side.wanted and (side.lease.job, side.lease.task) == key:
                yield from self._advance_devices(side)
        if key not in self._clients:
            yield from self._tasks.forget(key)

    def wedge_ended(self, name: str) -> Actions:
        """Try again to give up what was wedged by work that has ended after all."""
        for client in list(self._clients.values()):
            if client.name == name and client.state is SideState.WEDGED:
                client.retry = True
                yield from self._advance_client(client)
        for side in list(self._devices.values()):
            if side.name == name and side.state is SideState.WEDGED:
                side.retry = True
                yield from self._advance_devices(side)

    def _prepared(self, side: Side, event: ActionDone, advance: Callable[..., Actions]) -> Actions:
        if event.ok:
            side.go(SideState.PREPARED)
        else:
            side.wanted = False
            side.error = event.error
            side.note(event.error)
        if event.wedged:
            # Nothing can be undone before it has ended; who waits for it is told.
            side.go(SideState.WEDGED)
            yield from _answer(side.preparers, ok=False, error=side.told(event.error))
            yield from _answer(side.unpreparers, ok=False, error=side.told(event.error))
            if isinstance(side, ClientSide):
                yield from self._after_client(side)
            return
        yield from advance(side)

    def _unprepared(self, side: Side, event: ActionDone, forget: Callable[[], object]) -> Actions:
        if not event.ok:
            side.go(SideState.WEDGED)
            side.note(event.error)
            yield from _answer(side.preparers, ok=False, error=side.told(side.error or event.error))
            yield from _answer(side.unpreparers, ok=False, error=side.told(event.error))
            return
        side.go(SideState.ABSENT)
        forget()
        if side.ended:
            yield from _report_end(side)
        error = side.error or side.ended or f"{side.name} was released while it was being prepared"
        yield from _answer(side.preparers, ok=False, error=side.told(error))
        yield from _answer(side.unpreparers, ok=True)

    # Renewal and expiry.

    def renewed(self, event: LeasesRenewed) -> Actions:
        """Count the leases' time from the renewal."""
        until = event.now + self.ttl_s
        renewed = set(event.lease_ids)
        # What had expired when it was asked for stays so: its time must be over on this
        # node whatever arrives first, the answer or the tick of the clock.
        for side in self._devices.values():
            if side.lease.id in renewed and side.expires_at > event.now:
                side.expires_at = max(side.expires_at, until)
        for client in self._clients.values():
            for lease_id in client.expires_at.keys() & renewed:
                if client.expires_at[lease_id] > event.now:
                    client.expires_at[lease_id] = max(client.expires_at[lease_id], until)
        return iter(())

    def time_passed(self, now: float) -> Actions:
        """End what has expired, and what nobody has come back for."""
        expired = {side.lease.id for side in self._devices.values() if side.expires_at <= now}
        for client in self._clients.values():
            expired |= {lease_id for lease_id, at in client.expires_at.items() if at <= now}
        yield from self.end(sorted(expired), f"it was not renewed for {self.ttl_s:g} s")
        for client in list(self._clients.values()):
            if client.wanted and client.unclaimed_until is not None and client.unclaimed_until <= now:
                client.wanted = False
                client.ended = f"no program in a terminal came for it within {HOLD_GRACE_S:g} s"
                yield from self._advance_client(client)

    def end(self, lease_ids: Iterable[str], reason: str) -> Actions:
        """End leases from this node's side, and say so."""
        for lease_id in lease_ids:
            why = f"lease {lease_id} has ended: {reason}"
            for client in list(self._clients.values()):
                if client.wanted and lease_id in client.expires_at:
                    client.wanted, client.ended = False, why
                    yield from self._advance_client(client)
            side = self._devices.get(lease_id)
            if side is not None and side.wanted:
                yield from self._fence(side)
                side.wanted, side.ended = False, why
                yield from self._advance_devices(side)


def _no_place(leases: Iterable[PreparedLease]) -> str:
    """Say which storage is offered where nothing can be; empty for none."""
    for prepared in leases:
        lease = prepared.lease
        if lease.storage is None or lease.route is Route.LOCAL:
            continue
        try:
            transport_addresses(prepared.endpoint)
        except InvalidInput as error:
            return f"node {lease.device_node} offers lease {lease.id} where nothing can be: {error}"
    return ""


def _restore_side(side: Side, lost: str) -> None:
    side.go(SideState.PREPARED)
    side.note("restored")
    if lost:
        side.wanted, side.ended = False, lost
        side.note(lost)


def _trouble(side: Side) -> str:
    if side.state is not SideState.WEDGED:
        return ""
    # The last line of a wedged object's story is what went wrong.
    return side.told(side.story[-1] if side.story[-1] != SideState.WEDGED else side.error)


def _report_end(side: Side) -> Actions:
    if isinstance(side, DeviceSide):
        yield ReportLeaseEnded(lease=side.lease.without_secret(), device_side=True, reason=side.ended)
    elif isinstance(side, ClientSide):
        for prepared in side.leases:
            lease = prepared.lease.without_secret()
            yield ReportLeaseEnded(lease=lease, device_side=False, reason=side.ended)
        if not side.leases:
            yield ReportClientEnded(job=side.job, task=side.task, reason=side.ended)


def _answer(
    commands: list[str],
    *,
    ok: bool,
    error: str = "",
    endpoint: str = "",
    environment: dict[str, str] | None = None,
) -> Actions:
    waiting, commands[:] = list(commands), []
    for command in waiting:
        yield Answer(command=command, ok=ok, error=error, endpoint=endpoint, environment=environment or {})
