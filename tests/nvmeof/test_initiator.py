"""What an initiator's steps do with what they find: the paths, the identities, and who is in the way."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
from pathlib import Path

import msgspec
import pytest

from farbus.agent.journal import Journal
from farbus.agent.steps import StepRunner, WedgedError
from farbus.errors import Conflict, FarbusError, NotPermitted, TimedOut, Unavailable
from farbus.linux.cgroups import FakeCgroups
from farbus.linux.clock import FakeClock
from farbus.model.holders import Holder, HolderKind, Look
from farbus.model.nvmeof import (
    AnaState,
    Connection,
    ControllerState,
    IoLimit,
    SubsystemName,
    namespace_identity,
    transport_address,
)
from farbus.nvmeof.initiator import MendPath
from farbus.nvmeof.keys import LeaseKeys, tls_key_of
from farbus.nvmeof.parts import Attach
from farbus.nvmeof.sequences import AttachStep, from_body, resumable, steps_of
from tests.nvmeof.attaching import (
    FIRST,
    FIRST_TLS,
    KEY,
    SECOND,
    SECOND_TLS,
    SECRET,
    SIZE,
    Node,
    a_connection,
    a_target,
    passing,
)

VERSIONS = ("2.3", "2.13", "3.0")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def node(tmp_path: Path, clock: FakeClock) -> Node:
    return Node(tmp_path / "node", clock=clock)


def work_of(connection: Connection, **changes: object) -> Attach:
    return msgspec.structs.replace(Attach(id="l1", connections=(connection,)), **changes)


async def attach(
    node: Node, connection: Connection, *, key: str = "", secret: str = "", **changes: object
) -> dict[str, str]:
    """Do all steps, and return what they give."""
    found: dict[str, str] = {}
    keys = LeaseKeys(host=key, tls=tls_key_of(secret, connection.name) if secret else None)
    for step in steps_of(node.parts, work_of(connection, **changes), keys={connection.name.lease: keys}):
        result = await step.observe(None)
        found |= await step.do() if result is None else result
    return found


async def detach(node: Node, connection: Connection, **changes: object) -> None:
    for step in reversed(steps_of(node.parts, work_of(connection, **changes))):
        await step.compensate()


def named(steps: tuple[AttachStep, ...], kind: str) -> AttachStep:
    return next(step for step in steps if step.kind == kind)


# What is handed over.


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_nvme_cli_connects_what_was_asked_for(version: str, tmp_path: Path) -> None:
    node, connection = Node(tmp_path / "node", version=version), a_connection(loss_s=45, reconnect_delay_s=3)
    node.nvme.offer(a_target(connection))
    result = await attach(node, connection)
    assert result["path"] == connection.namespaces[0].identity.by_id
    assert node.nvme.leads_to(result["path"]) == "nvme0n1"
    found = node.nvme.controllers()
    assert [(str(one.address), one.loss_s, one.reconnect_delay_s) for one in found] == [(FIRST, 45, 3), (SECOND, 45, 3)]
    await detach(node, connection)
    assert node.nvme.controllers() == ()
    assert node.nvme.leads_to(result["path"]) == ""


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_key_goes_to_nvme_cli_and_into_no_argument(version: str, tmp_path: Path) -> None:
    node, connection = Node(tmp_path / "node", version=version), a_connection(authenticated=True)
    node.nvme.offer(a_target(connection, key=KEY))
    await attach(node, connection, key=KEY)
    assert len(node.nvme.controllers()) == 2
    assert all(KEY in call.configuration for call in node.nvme.calls)
    assert not any("DHHC" in word for call in node.nvme.calls for word in call.arguments)
    # Nor where somebody may print the step.
    assert "DHHC" not in repr(steps_of(node.parts, work_of(connection), keys={"l1": LeaseKeys(host=KEY)}))


@pytest.mark.parametrize(("key", "says"), [("", "the agent that had the key is gone"), (KEY[:-9] + "aaaaaaaa:", "key")])
async def test_a_refused_key_is_told_in_one_line(key: str, says: str, node: Node) -> None:
    connection = a_connection(authenticated=True)
    node.nvme.offer(a_target(connection, key=KEY))
    with pytest.raises((NotPermitted, Conflict), match=says) as caught:
        await attach(node, connection, key=key)
    assert "\n" not in str(caught.value)
    assert "DHHC" not in str(caught.value)
    assert node.nvme.controllers() == ()


async def test_one_path_is_enough_and_the_missing_one_is_told(node: Node) -> None:
    connection = a_connection()
    node.nvme.offer(a_target(connection, closed=(SECOND,)))
    result = await attach(node, connection)
    assert result["missing"] == f"{SECOND}: nobody listens at this address"
    assert len(node.nvme.controllers()) == 1


async def test_where_no_path_comes_up_each_is_told(node: Node) -> None:
    connection = a_connection()
    node.nvme.offer(a_target(connection, closed=(FIRST,), cut=(SECOND,)))
    with pytest.raises(Unavailable, match=f"{FIRST}: nobody listens at this address; {SECOND}: no answer"):
        await attach(node, connection)


async def test_the_limit_of_a_lease_is_set_and_taken_back(node: Node) -> None:
    connection, limit, cgroups = a_connection(), IoLimit(read_bytes_s=10**9), FakeCgroups()
    cgroups.create("task-1", memory_bytes=0, cpu_milli=0)
    node.parts = dataclasses.replace(node.parts, cgroups=cgroups)
    node.nvme.offer(a_target(connection))
    await attach(node, connection, limit=limit, group="task-1")
    assert cgroups.io_limit("task-1", "259:0") == limit
    await detach(node, connection, limit=limit, group="task-1")
    assert cgroups.io_limit("task-1", "259:0") == IoLimit()


# What is not handed over.


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"uuid": str(namespace_identity("other").uuid)}, "has UUID .*, not"),
        ({"nguid": "0" * 31 + "1"}, "has NGUID 0{31}1, not"),
        ({"size_bytes": SIZE // 2}, f"has {SIZE // 2} bytes, not {SIZE}"),
        ({"size_bytes": SIZE * 2}, f"has {SIZE * 2} bytes, not {SIZE}"),
    ],
)
async def test_another_namespace_is_refused(change: dict[str, object], says: str, node: Node, clock: FakeClock) -> None:
    connection = a_connection()
    target = a_target(connection)
    node.nvme.offer(
        msgspec.structs.replace(target, namespaces=(msgspec.structs.replace(target.namespaces[0], **change),))
    )
    with pytest.raises(Conflict, match=says):
        await passing(clock, attach(node, connection))


async def test_another_serial_number_is_refused(node: Node) -> None:
    connection = a_connection()
    node.nvme.offer(a_target(connection, serial="another"))
    with pytest.raises(Conflict, match="the serial number is another, not"):
        await attach(node, connection)


async def test_a_size_that_follows_is_waited_for(node: Node, clock: FakeClock) -> None:
    # The target has grown the volume, and this kernel has not heard of it yet.
    connection = a_connection()
    node.nvme.offer(a_target(connection))
    await attach(node, connection)
    larger = msgspec.structs.replace(connection.namespaces[0], size_bytes=2 * SIZE)
    verify = named(
        steps_of(node.parts, work_of(msgspec.structs.replace(connection, namespaces=(larger,)))), "VerifyNamespaces"
    )
    task = asyncio.ensure_future(verify.do())
    await clock.advance(1)
    assert not task.done()
    node.nvme.resize(connection.nqn, 2 * SIZE)
    await passing(clock, task, seconds=2)


async def test_a_namespace_that_comes_late_is_waited_for_and_a_uevent_wakes(node: Node, clock: FakeClock) -> None:
    connection = a_connection()
    node.nvme.offer(a_target(connection))
    node.nvme.lazy = True
    task = asyncio.ensure_future(attach(node, connection))
    for _ in range(50):
        await asyncio.sleep(0)
    assert not task.done()
    node.nvme.settle()
    node.uevents.send("add", "/devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1", subsystem="block")
    # No time passes.
    await asyncio.wait_for(task, 5)


async def test_a_namespace_that_never_comes_is_told(node: Node, clock: FakeClock) -> None:
    connection = a_connection()
    node.nvme.offer(a_target(connection, namespaces=()))
    with pytest.raises(TimedOut, match=r"namespace 1 .* is not there after 20 s"):
        await passing(clock, attach(node, connection))


async def test_paths_that_may_not_be_used_are_told(node: Node, clock: FakeClock) -> None:
    connection = a_connection()
    node.nvme.offer(a_target(connection, ana=dict.fromkeys((FIRST, SECOND), AnaState.INACCESSIBLE)))
    with pytest.raises(TimedOut, match=r"no path to namespace 1 can be used \(inaccessible\)"):
        await passing(clock, attach(node, connection))


async def test_without_udev_no_path_is_handed_over(node: Node, clock: FakeClock) -> None:
    connection = a_connection()
    node.nvme.offer(a_target(connection))
    node.nvme.no_udev = True
    with pytest.raises(TimedOut, match="leads to nothing, not to nvme0n1 after 20 s; does udev run"):
        await passing(clock, attach(node, connection))


async def test_a_link_that_leads_elsewhere_is_not_handed_over(node: Node, clock: FakeClock) -> None:
    mine, other = a_connection(), a_connection("l2")
    node.nvme.offer(a_target(mine), a_target(other))
    await attach(node, other)
    node.nvme.no_udev = True
    link = node.nvme.directory / "dev/disk/by-id" / f"nvme-uuid.{mine.namespaces[0].identity.uuid}"
    link.symlink_to("../../nvme0n1")
    with pytest.raises(TimedOut, match="leads to nvme0n1, not to nvme1n1"):
        await passing(clock, attach(node, mine))


# What is in the way.


async def test_what_an_earlier_epoch_has_left_goes_first(node: Node) -> None:
    earlier, now = a_connection(epoch=2), a_connection(epoch=3)
    node.nvme.offer(a_target(earlier))
    await attach(node, earlier)
    node.nvme.withdraw(earlier.nqn)
    node.nvme.offer(a_target(now))
    await attach(node, now)
    assert {one.nqn for one in node.nvme.controllers()} == {now.nqn}


async def test_a_later_epoch_stays_and_the_order_is_refused(node: Node) -> None:
    before, now = a_connection(epoch=2), a_connection(epoch=3)
    node.nvme.offer(a_target(before), a_target(now))
    await attach(node, now)
    with pytest.raises(Conflict, match="epoch 3 of the lease is connected already"):
        await attach(node, before)
    assert {one.nqn for one in node.nvme.controllers()} == {now.nqn}


@pytest.mark.parametrize("fenced", [False, True])
async def test_a_volume_that_another_lease_has_here_is_refused_until_that_is_fenced(fenced: bool, node: Node) -> None:
    old = a_connection("old")
    now = a_connection("now", namespaces=old.namespaces)
    node.nvme.offer(a_target(old), a_target(now))
    await attach(node, old)
    if fenced:
        node.nvme.withdraw(old.nqn)
        await attach(node, now)
        assert {one.nqn for one in node.nvme.controllers()} == {now.nqn}
    else:
        with pytest.raises(Conflict, match="has the namespace already, connected for lease old"):
            await attach(node, now)


async def test_controllers_of_others_are_never_touched(node: Node) -> None:
    connection = a_connection()
    theirs = a_connection("theirs")
    foreign = a_target(theirs, nqn="nqn.2014-08.org.example:theirs", host_nqn="nqn.2014-08.org.example:host")
    node.nvme.offer(a_target(connection), foreign)
    node.nvme._add(
        {
            "transport": "tcp", "traddr": "10.0.0.2", "trsvcid": "4420", "nqn": foreign.nqn,
            "hostnqn": foreign.host_nqn, "hostid": "x", "ctrl_loss_tmo": 1, "reconnect_delay": 1, "keep_alive_tmo": 1,
        }
    )  # fmt: skip
    node.nvme.half_made = True
    node.nvme._new_controller(
        {"transport": "tcp", "traddr": "10.0.0.9", "trsvcid": "4420", "hostnqn": foreign.host_nqn, "hostid": "x",
         "ctrl_loss_tmo": 1, "reconnect_delay": 1, "keep_alive_tmo": 1}, None,
    )  # fmt: skip
    before = node.nvme.controllers()
    await attach(node, connection)
    await detach(node, connection)
    assert node.nvme.controllers() == before


async def test_what_is_half_made_is_cleared_when_nobody_connects_it_any_more(node: Node, clock: FakeClock) -> None:
    connection = a_connection()
    node.nvme.offer(a_target(connection, closed=(FIRST, SECOND)))
    node.nvme.half_made = True
    with pytest.raises(Unavailable):
        await attach(node, connection)
    assert [one.half_made for one in node.nvme.controllers()] == [True, True]
    node.nvme.half_made = False
    node.nvme.offer(a_target(connection))
    began = clock.monotonic()
    await passing(clock, attach(node, connection))
    assert clock.monotonic() - began >= 10
    assert [one.half_made for one in node.nvme.controllers()] == [False, False]


async def test_one_that_is_still_connected_by_another_process_is_not_deleted(node: Node, clock: FakeClock) -> None:
    connection = a_connection()
    node.nvme.offer(a_target(connection, cut=(FIRST, SECOND)))
    node.nvme.half_made = True
    with pytest.raises(Unavailable):
        await attach(node, connection)
    node.nvme.refuse_write = dict.fromkeys(("nvme0", "nvme1"), errno.EBUSY)
    with pytest.raises(Conflict, match="the kernel is still connecting it"):
        await passing(clock, attach(node, connection))


# Taking away.


def held(name: str = "postgres") -> Look:
    return Look(holders=(Holder(kind=HolderKind.PROCESS, name=name, path="/dev/nvme0n1", pid=7),))


async def test_nothing_is_taken_from_who_holds_it(node: Node, clock: FakeClock) -> None:
    connection = a_connection()
    node.nvme.offer(a_target(connection))
    await attach(node, connection)
    node.holders.state = held()
    with pytest.raises(Conflict, match=r"still held after 10 s: /dev/nvme0n1 is open in pid 7 \(postgres\)"):
        await passing(clock, detach(node, connection))
    assert len(node.nvme.controllers()) == 2
    await detach(node, connection, force=True)
    assert node.nvme.controllers() == ()


async def test_who_lets_go_in_time_is_waited_for(node: Node, clock: FakeClock) -> None:
    connection = a_connection()
    node.nvme.offer(a_target(connection))
    await attach(node, connection)
    node.holders.state = held("(udev-worker)")
    task = asyncio.ensure_future(detach(node, connection))
    await clock.advance(1)
    node.holders.state = Look()
    await passing(clock, task, seconds=5)
    assert node.nvme.controllers() == ()


async def test_what_the_kernel_itself_holds_stays(node: Node) -> None:
    connection = a_connection()
    node.nvme.offer(a_target(connection))
    await attach(node, connection)
    node.holders.busy = "/dev/nvme0n1"
    with pytest.raises(Conflict, match="in use by the kernel"):
        await detach(node, connection)
    assert len(node.nvme.controllers()) == 2


async def test_a_controller_that_does_not_go_is_told_as_wedged(node: Node) -> None:
    connection = a_connection()
    node.nvme.offer(a_target(connection))
    await attach(node, connection)
    step = named(steps_of(node.parts, work_of(connection)), "Connect")
    assert step.overdue() is None
    node.nvme.set_state("nvme1", ControllerState.DELETING)
    told = step.overdue()
    assert isinstance(told, FarbusError)
    assert f"nvme1 ({SECOND}) is deleting and does not go" in told.message


async def test_a_connect_that_does_not_end_is_wedged_and_another_lease_goes_on(
    node: Node, clock: FakeClock, tmp_path: Path
) -> None:
    hanging, other = a_connection("hanging"), a_connection("other")
    node.nvme.offer(a_target(hanging), a_target(other))
    journal, _ = await Journal.open(tmp_path / "journal.db", boot_id="boot")
    told: asyncio.Future[WedgedError] = asyncio.get_running_loop().create_future()

    async def live() -> None:
        async with asyncio.TaskGroup() as group:
            runner = StepRunner(journal=journal, clock=clock, group=group)
            node.nvme.hang = True
            with pytest.raises(WedgedError) as caught:
                await runner.perform(node.steps(msgspec.structs.replace(work_of(hanging), id="hanging")))
            node.nvme.hang = False
            # Nobody waits for the hanging one.
            await runner.perform(node.steps(msgspec.structs.replace(work_of(other), id="other")))
            told.set_result(caught.value)
            await asyncio.get_running_loop().create_future()

    task = asyncio.ensure_future(live())
    while not told.done():
        # The journal writes in a thread of its own; time passes for the connect alone.
        await asyncio.to_thread(lambda: None)
        if node.nvme.hang and node.nvme.calls:
            await clock.advance(1.0)
        assert not task.done() or task.exception() is None
    assert "Connect of subsystem nqn.2026-11.io.farbus:lease:hanging:3 is still not done" in str(told.result())
    assert {one.nqn for one in node.nvme.controllers()} == {other.nqn}
    task.cancel()
    await asyncio.wait({task})
    await journal.close()


# A restarted agent.


async def test_connections_are_found_again_and_kept(node: Node) -> None:
    connection = a_connection(authenticated=True)
    node.nvme.offer(a_target(connection, key=KEY))
    steps = steps_of(node.parts, work_of(connection), keys={"l1": LeaseKeys(host=KEY)})
    results = [await step.do() for step in steps]
    # One path is lost for the moment, and one for good.
    node.nvme.set_state("nvme0", ControllerState.CONNECTING)
    node.nvme.lose("nvme1")
    calls = len(node.nvme.calls)
    again = steps_of(node.parts, work_of(connection))
    assert [await step.observe(known) for step, known in zip(again, results, strict=True)] == results
    assert len(node.nvme.calls) == calls


async def test_connections_that_are_gone_are_not_found(node: Node) -> None:
    connection = a_connection()
    node.nvme.offer(a_target(connection))
    results = [await step.do() for step in steps_of(node.parts, work_of(connection))]
    for name in ("nvme0", "nvme1"):
        node.nvme.lose(name)
    again = steps_of(node.parts, work_of(connection))
    assert [await step.observe(known) for step, known in zip(again, results, strict=True)][1:] == [None] * 3


async def test_what_is_missing_of_a_connection_is_added_by_who_goes_on(node: Node) -> None:
    connection = a_connection()
    node.nvme.offer(a_target(connection))
    await attach(node, connection)
    node.nvme.lose("nvme1")
    connect = named(steps_of(node.parts, work_of(connection)), "Connect")
    assert await connect.observe(None) is None
    assert await connect.do() == {"missing": ""}
    assert len(node.nvme.controllers()) == 2


async def test_a_body_tells_all_but_the_key() -> None:
    work = work_of(a_connection(authenticated=True))
    assert from_body(msgspec.json.encode(work).decode()) == work
    assert not resumable(work)
    assert resumable(work_of(a_connection()))


async def test_a_name_given_to_another_controller_is_not_disconnected(node: Node) -> None:
    mine, other = a_connection(), a_connection("l2")
    node.nvme.offer(a_target(mine), a_target(other))
    await attach(node, mine)
    seen = node.nvme.controllers()[0]
    node.nvme.lose("nvme0")
    await attach(node, other)
    assert next(one for one in node.nvme.controllers() if one.name == "nvme0").nqn == other.nqn
    await node.nvme.disconnect(seen)
    assert "nvme0" in [one.name for one in node.nvme.controllers()]


async def test_several_namespaces_of_one_subsystem_are_handed_over(node: Node) -> None:
    first = a_connection().namespaces[0]
    second = msgspec.structs.replace(first, identity=namespace_identity("more"), nsid=2)
    connection = a_connection(namespaces=(first, second))
    node.nvme.offer(a_target(connection))
    result = await attach(node, connection)
    assert result["paths"].split() == [first.identity.by_id, second.identity.by_id]


# TLS.


def encrypted(node: Node, epoch: int = 3, **changes: object) -> Connection:
    """Return a connection over two paths of TLS, whose target is there."""
    addresses = (transport_address(FIRST_TLS), transport_address(SECOND_TLS))
    connection = a_connection(epoch=epoch, addresses=addresses)
    node.nvme.offer(a_target(connection, psk=tls_key_of(SECRET, connection.name).psk, **changes))
    return connection


def keys_of(node: Node) -> list[SubsystemName]:
    return [one.identity.name for one in node.nvme.tls_keys.held()]


async def test_what_is_encrypted_has_its_key_for_as_long_as_it_is_connected(node: Node) -> None:
    connection = encrypted(node)
    result = await attach(node, connection, secret=SECRET)
    assert result["path"] == connection.namespaces[0].identity.by_id
    (key,) = node.nvme.tls_keys.held()
    assert key.identity == tls_key_of(SECRET, connection.name).identity
    assert [(str(one.address), one.tls_key) for one in node.nvme.controllers()] == [
        (FIRST_TLS, key.serial),
        (SECOND_TLS, key.serial),
    ]
    # Who restarts has no secret, and needs none.
    steps = steps_of(node.parts, work_of(connection))
    assert all([await step.observe(result) is not None for step in steps])
    assert not resumable(work_of(connection))
    await detach(node, connection)
    assert (node.nvme.controllers(), keys_of(node)) == ((), [])


@pytest.mark.parametrize("tls", [False, True])
async def test_of_a_path_that_does_not_come_again_nothing_is_left(tls: bool, node: Node) -> None:
    connection = encrypted(node, closed=(SECOND_TLS,)) if tls else a_connection()
    if not tls:
        node.nvme.offer(a_target(connection, closed=(SECOND,)))
    await attach(node, connection, secret=SECRET if tls else "")
    before = node.nvme.controllers()
    node.nvme.half_made = True
    step = MendPath(
        parts=node.parts, work=work_of(connection), connection=connection, address=connection.addresses[1]
    )  # fmt: skip
    with pytest.raises(Unavailable):
        await step.do()
    assert [one.half_made for one in node.nvme.controllers()] == [False, True]
    await step.compensate()
    assert node.nvme.controllers() == before


async def test_the_key_is_in_no_argument_and_no_configuration(node: Node) -> None:
    connection = encrypted(node)
    psk = tls_key_of(SECRET, connection.name).psk
    await attach(node, connection, secret=SECRET)
    assert len(node.nvme.calls) == 2
    assert psk not in repr(node.nvme.calls)
    keys = LeaseKeys(tls=tls_key_of(SECRET, connection.name))
    assert psk not in repr(steps_of(node.parts, work_of(connection), keys={"l1": keys}))


async def test_the_key_of_an_earlier_epoch_goes_with_it(node: Node) -> None:
    before = encrypted(node, epoch=3)
    await attach(node, before, secret=SECRET)
    node.nvme.withdraw(before.nqn)
    now = encrypted(node, epoch=4)
    await attach(node, now, secret=SECRET)
    assert keys_of(node) == [now.name]
    assert {one.nqn for one in node.nvme.controllers()} == {now.nqn}


@pytest.mark.parametrize(
    ("secret", "says"),
    [("", "its lease's secret is not known here"), ("a5" * 32, "the handshake of TLS failed")],
)
async def test_without_the_right_key_nothing_is_connected(secret: str, says: str, node: Node) -> None:
    connection = encrypted(node)
    with pytest.raises((Unavailable, Conflict), match=says) as caught:
        await attach(node, connection, secret=secret)
    assert "\n" not in str(caught.value)
    await detach(node, connection)
    assert (node.nvme.controllers(), keys_of(node)) == ((), [])


async def test_what_is_encrypted_by_another_key_is_not_handed_over(node: Node) -> None:
    connection = encrypted(node)
    key = tls_key_of(SECRET, connection.name)
    steps = steps_of(node.parts, work_of(connection), keys={"l1": LeaseKeys(tls=key)})
    for step in steps[:3]:
        await step.do()
    # Somebody else has asked the kernel for it, by a key of his own.
    place = node.nvme.directory / "sys/class/nvme/nvme1/tls_key"
    place.write_text("0badcafe\n")
    with pytest.raises(Conflict, match=r"nvme1 \(tcp\+tls://10.0.1.2:4421\) is encrypted by key 0badcafe, which"):
        await named(steps, "VerifyNamespaces").do()


async def test_without_the_daemon_it_is_said_before_anything_is_connected(node: Node) -> None:
    connection = encrypted(node)
    node.nvme.tls_keys.stop_daemon()
    with pytest.raises(Unavailable, match="tlshd does not run on this node") as caught:
        await attach(node, connection, secret=SECRET)
    assert "ktls-utils" in caught.value.hint
    assert node.nvme.calls == []


async def test_a_node_without_a_keyring_connects_what_is_in_the_clear(node: Node) -> None:
    bare = dataclasses.replace(node.parts, tls_keys=None)
    with pytest.raises(Unavailable, match="this node has no keyring for it"):
        await named(steps_of(bare, work_of(encrypted(node))), "HoldTlsKey").do()
    assert [step.kind for step in steps_of(bare, work_of(a_connection()))][:2] == ["ClearEarlier", "Connect"]
