"""The target's steps on files: what is offered, what is refused, and how it ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from farbus.errors import Conflict, FarbusError, InvalidInput, NotFound, Unavailable
from farbus.model.nvmeof import (
    AnaState,
    Export,
    SubsystemName,
    Transport,
    TransportAddress,
    namespace_identity,
    transport_address,
)
from farbus.model.nvmet import NODE_ANA_GROUP, NamespaceUse, Target
from farbus.nvmeof.comparison import differences, our_subsystems
from farbus.nvmeof.keys import tls_key_of
from farbus.nvmeof.target import (
    AccessWork,
    AddressWork,
    ExportWork,
    WithdrawWork,
    from_body,
    is_resumable,
    object_of,
    resized,
    steps_of,
    uses,
)
from tests.nvmeof.target_harness import (
    HERE,
    HERE_TLS,
    SECRET,
    THEIR_ADDRESS,
    THERE,
    THERE_TLS,
    Node,
    back,
    forward,
)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path)
    made.add_foreign()
    return made


# What is offered.


async def test_an_export_is_offered_as_it_says(node: Node) -> None:
    export = node.export(devices=("a", "b"), addresses=(HERE, THERE), authenticated=True)
    told = await node.offer(export)
    target = node.target()
    assert differences(target, export) == ()
    found = target.subsystem(export.nqn)
    assert found is not None
    assert (found.any_host, found.hosts) == (False, (export.name.host_nqn,))
    assert [namespace.uuid for namespace in found.namespaces] == [namespace_identity(name).uuid for name in "ab"]
    assert {port.id: port.address for port in target.ports_of(export.nqn)} == {64000: "10.0.0.7", 64001: "fd00::7"}
    assert told["size_bytes.1"] == "4096"
    assert told[f"port.{HERE}"] == "64000"
    await node.withdraw(export)
    assert node.target() == node.foreign()


async def test_it_can_be_reached_last_and_is_fenced_first(node: Node) -> None:
    export = node.export(addresses=(HERE, THERE))
    await node.offer(export)
    links = [number for number, call in enumerate(node.nvmet.calls) if call[0] == "link" and "ports" in call[1]]
    assert links[-1] == len(node.nvmet.calls) - 1
    assert all(not call[1].startswith("subsystems") for call in node.nvmet.calls[links[0] :])
    node.nvmet.calls.clear()
    await node.withdraw(export)
    verbs = [(call[0], call[1].split("/")[0]) for call in node.nvmet.calls]
    assert verbs == [
        ("write?", "subsystems"),
        ("unlink", "ports"), ("unlink", "ports"), ("rmdir", "ports"), ("rmdir", "ports"),
        ("unlink", "subsystems"), ("rmdir", "hosts"), ("rmdir", "subsystems"), ("rmdir", "subsystems"),
    ]  # fmt: skip


async def test_what_is_offered_already_is_taken_hold_of(node: Node) -> None:
    export = node.export()
    await node.offer(export)
    node.nvmet.calls.clear()
    await node.offer(export)
    assert node.nvmet.calls == []


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("subsystems/{nqn}/attr_serial", "OTHER", "serial is OTHER"),
        ("subsystems/{nqn}/namespaces/1/device_path", "{b}", "namespace 1: device is"),
        ("subsystems/{nqn}/namespaces/1/device_uuid", "aaaaaaaa-0000-4000-8000-000000000001", "namespace 1: uuid is"),
        ("subsystems/{nqn}/namespaces/1/device_nguid", "00" * 16, "namespace 1: nguid is"),
        ("subsystems/{nqn}/namespaces/1/enable", "0", "namespace 1: it is disabled"),
    ],
)
async def test_what_is_offered_otherwise_than_recorded_is_told_and_left(
    node: Node, path: str, value: str, told: str
) -> None:
    export = node.export()
    await node.offer(export)
    kernel, namespace = node.nvmet.kernel, f"subsystems/{export.nqn}/namespaces/1"
    kernel.write(f"{namespace}/enable", "0")
    kernel.write(path.format(nqn=export.nqn), value.format(b=node.device("b")))
    if not path.endswith("enable"):
        kernel.write(f"{namespace}/enable", "1")
    before = node.target()
    (difference,) = differences(before, export)
    assert told in difference
    with pytest.raises(Conflict, match="it is offered otherwise than recorded"):
        await node.offer(export)
    assert node.target() == before


async def test_what_a_kernel_makes_otherwise_is_told_and_not_offered(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, export, write = node.target(), node.export(), node.nvmet.kernel.write

    def write_as_linux_5_10(path: str, value: str) -> None:
        write(path, f"{int(value, 16) % 2**64:x}" if path.endswith("attr_serial") else value)

    monkeypatch.setattr(node.nvmet.kernel, "write", write_as_linux_5_10)
    with pytest.raises(Unavailable, match=f"something else: serial is .*, not {export.serial}; it was tried with"):
        await node.offer(export)
    assert node.target().ports_of(export.nqn) == ()
    await node.withdraw(export)
    assert node.target() == before


async def test_who_may_connect_and_where_is_compared(node: Node) -> None:
    export = node.export()
    await node.offer(export)
    kernel = node.nvmet.kernel
    kernel.link(f"subsystems/{export.nqn}/allowed_hosts/other", "hosts/nqn.2014-08.org.example:host")
    kernel.unlink(f"ports/64000/subsystems/{export.nqn}")
    assert differences(node.target(), msgspec.structs.replace(export, authenticated=True)) == (
        "nqn.2014-08.org.example:host may connect",
        f"{export.name.host_nqn} need not prove a key",
        f"it is not offered at {HERE}",
    )
    assert differences(Target(), export)[0] == f"no subsystem {export.nqn}"


async def test_half_of_a_subsystem_is_made_anew(node: Node) -> None:
    export = node.export()
    await node.nvmet.make_subsystem(export.nqn, serial="HALF")
    await node.nvmet.make_namespace(export.nqn, node.export(devices=("b",)).namespaces[0])
    await node.offer(export)
    assert differences(node.target(), export) == ()


# Epochs.


async def test_an_older_epoch_ends_before_a_newer_is_offered(node: Node) -> None:
    old, new = (node.export(epoch=epoch, authenticated=True) for epoch in (1, 2))
    await node.offer(old)
    node.nvmet.calls.clear()
    await node.offer(new)
    assert our_subsystems(node.target()) == (new.name,)
    assert differences(node.target(), new) == ()
    gone = next(number for number, call in enumerate(node.nvmet.calls) if call == ("rmdir", f"subsystems/{old.nqn}"))
    made = next(number for number, call in enumerate(node.nvmet.calls) if call == ("mkdir", f"subsystems/{new.nqn}"))
    assert gone < made


async def test_an_epoch_that_has_passed_is_not_offered(node: Node) -> None:
    await node.offer(node.export(epoch=2))
    before = node.target()
    with pytest.raises(Conflict, match="lease:one:2 is there already, which is newer"):
        await node.offer(node.export(epoch=1))
    assert node.target() == before


async def test_an_old_epochs_record_does_not_end_the_new_one(node: Node) -> None:
    old, new = (node.export(epoch=epoch, authenticated=True) for epoch in (1, 2))
    await node.offer(old)
    await node.offer(new)
    await node.withdraw(old)
    assert differences(node.target(), new) == ()


# What is refused, before anything is touched.


@pytest.mark.parametrize(
    ("changes", "kind", "told"),
    [
        ({"devices": ("none",)}, NotFound, "none: No such file"),
        ({"devices": ("config",)}, Conflict, "config: not a block device"),
        ({"devices": ("b",)}, Conflict, "b: in use by dm-0"),
        ({"devices": ("c",)}, Conflict, "c is exported as nqn.2014-08.org.example:theirs already"),
        ({"devices": ("a", "a")}, InvalidInput, "the same device twice"),
        ({"devices": ()}, InvalidInput, "it needs a namespace and an address"),
        ({"addresses": (HERE, HERE)}, InvalidInput, "the same address twice"),
        ({"addresses": (THEIR_ADDRESS,)}, Conflict, r"port 1 \(tcp://10.0.0.7:4421\) listens there"),
        ({"lease": "unknown", "authenticated": True}, Conflict, "its lease's secret is not known here"),
        ({"states": {str(HERE): {"1": AnaState.CHANGE}}}, InvalidInput, "ANA group 1 is everybody's"),
        (
            {"authenticated": True, "addresses": (transport_address("loop://127.0.0.1:1"),)},
            InvalidInput,
            "knows no authentication",
        ),
    ],
)
async def test_what_can_not_be_exported_is_refused_with_the_reason(
    node: Node, changes: dict[str, object], kind: type[FarbusError], told: str
) -> None:
    node.blocks.held[node.device("b")] = "dm-0"
    before = node.target()
    with pytest.raises(kind, match=told):
        await node.offer(node.export(**changes))  # type: ignore[arg-type]
    assert node.target() == before
    assert node.nvmet.calls == []


async def test_a_port_that_listens_everywhere_is_in_the_way(node: Node) -> None:
    node.nvmet.kernel.mkdir("ports/2")
    for name, value in (("trtype", "tcp"), ("traddr", "0.0.0.0"), ("trsvcid", "4420")):
        node.nvmet.kernel.write(f"ports/2/addr_{name}", value)
    with pytest.raises(Conflict, match="port 2"):
        await node.offer(node.export())


async def test_a_device_is_exported_once(node: Node) -> None:
    await node.offer(node.export("one"))
    with pytest.raises(Conflict, match=r"a is exported as .*lease:one:1 already"):
        await node.offer(node.export("two"))


@pytest.mark.parametrize("address", ["tcp://192.0.2.1:4420"])
async def test_an_address_of_another_machine_leaves_nothing(node: Node, address: str) -> None:
    export = node.export(addresses=(transport_address(address),))
    with pytest.raises(Unavailable, match="Cannot assign requested address"):
        await node.offer(export)
    await node.withdraw(export)
    assert node.target() == node.foreign()


async def test_a_kernel_without_keys_leaves_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path, authentication=False)
    export = node.export(authenticated=True)
    with pytest.raises(Unavailable, match="knows no authentication"):
        await node.offer(export)
    await node.withdraw(export)
    assert node.target() == Target()


# Ports and groups are shared.


async def test_leases_share_a_port_and_the_last_one_removes_it(node: Node) -> None:
    first, second = node.export("one"), node.export("two", devices=("b",))
    await node.offer(first)
    await node.offer(second)
    (port,) = node.target().ports_of(first.nqn)
    assert port.subsystems == (first.nqn, second.nqn)
    await node.withdraw(first)
    assert differences(node.target(), second) == ()
    await node.end(second.name)
    assert node.target() == node.foreign()


async def test_states_of_a_group_are_set_changed_and_taken_back(node: Node) -> None:
    namespace = msgspec.structs.replace(node.export().namespaces[0], ana_group=5)
    export = node.export(
        namespaces=(namespace,), addresses=(HERE, THERE), states={str(THERE): {"5": AnaState.INACCESSIBLE}}
    )
    await node.offer(export)
    assert [port.states["5"] for port in node.target().ports_of(export.nqn)] == ["optimized", "inaccessible"]
    other = msgspec.structs.replace(export, states={str(HERE): {"5": AnaState.INACCESSIBLE}})
    steps = steps_of(node.parts, AccessWork(export=other, before=export.states))
    await forward(steps)
    assert [port.states["5"] for port in node.target().ports_of(export.nqn)] == ["inaccessible", "optimized"]
    await back(steps)
    assert differences(node.target(), export) == ()
    await node.withdraw(export)
    assert node.target() == node.foreign()


async def test_a_group_of_anothers_keeps_its_state(node: Node) -> None:
    first, second = (
        node.export(
            lease, devices=(device,),
            namespaces=(msgspec.structs.replace(node.export(devices=(device,)).namespaces[0], ana_group=5),),
        )
        for lease, device in (("one", "a"), ("two", "b"))
    )  # fmt: skip
    await node.offer(first)
    with pytest.raises(Conflict, match="ANA group 5 is in use there, and optimized"):
        await node.offer(msgspec.structs.replace(second, states={str(HERE): {"5": AnaState.INACCESSIBLE}}))
    await node.withdraw(second)
    await node.offer(second)
    await node.withdraw(first)
    assert differences(node.target(), second) == ()


async def test_a_subsystem_at_somebody_elses_port_is_fenced_and_told(node: Node) -> None:
    export = node.export()
    await node.offer(export)
    node.nvmet.kernel.link(f"ports/1/subsystems/{export.nqn}", f"subsystems/{export.nqn}")
    with pytest.raises(Conflict, match=r"port 1 .* offers it, which is not one of Farbus's") as caught:
        await node.end(export.name)
    assert caught.value.hint == f"rm /sys/kernel/config/nvmet/ports/1/subsystems/{export.nqn}"
    (found,) = (one for one in node.target().subsystems if one.is_ours)
    assert not found.namespaces[0].enabled
    assert [port.id for port in node.target().ports_of(export.nqn)] == [1]


async def test_a_device_that_does_not_answer_holds_up_the_hand_over(node: Node) -> None:
    old, new = node.export(epoch=1), node.export(epoch=2)
    await node.offer(old)
    node.nvmet.hang = True
    handing_over = asyncio.create_task(node.offer(new))
    await node.nvmet.hanging.wait()
    assert differences(node.target(), old) == ()
    assert our_subsystems(node.target()) == (old.name,)
    handing_over.cancel()


# Withdrawal without a record, cut off at each call.


class CutOff(BaseException):
    """The process ends here."""


async def test_a_withdrawal_goes_on_wherever_it_was_cut_off(node: Node) -> None:
    export = node.export(devices=("a", "b"), addresses=(HERE, THERE), authenticated=True)
    steps = steps_of(node.parts, WithdrawWork(name=export.name))
    finished = False
    point = 0
    while not finished:
        await node.offer(export)
        calls = iter(range(point))

        def passing(left: object = calls) -> None:
            if next(left, None) is None:  # type: ignore[call-overload]
                raise CutOff

        node.nvmet.passing = passing
        try:
            await forward(steps)
            finished = True
        except CutOff:
            node.nvmet.passing = lambda: None
            await forward(steps)
        node.nvmet.passing = lambda: None
        assert node.target() == node.foreign(), f"cut off at {point}"
        point += 1
    assert point > 10


async def test_what_is_still_there_after_its_removal_is_told(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    export = node.export()
    await node.offer(export)

    async def nothing(subsystem: object) -> None:
        return

    monkeypatch.setattr(node.nvmet, "remove_subsystem", nothing)
    with pytest.raises(Unavailable, match="still there after it was removed"):
        await node.withdraw(export)


# Keys, sizes, use, records.


async def test_keys_are_nowhere_but_in_the_kernel(node: Node) -> None:
    export = node.export(authenticated=True)
    told = await node.offer(export)
    key = node.parts.keys(export.name)
    assert key is not None
    written = [call for call in node.nvmet.calls if any("DHHC" in word for word in call)]
    assert [call[1].rpartition("/")[2] for call in written] == ["dhchap_key", "dhchap_ctrl_key"]
    place = node.directory / "config/nvmet/hosts" / export.name.host_nqn
    assert (place / "dhchap_key").read_text() == f"{key.host}\n"
    work = ExportWork(export=export)
    shown = [repr(told), repr(steps_of(node.parts, work)), msgspec.json.encode(work).decode(), repr(node.target())]
    assert not any("DHHC" in text or SECRET in text for text in shown)
    assert not is_resumable(work)


async def test_a_restarted_agent_without_the_secret_keeps_what_is_offered(node: Node) -> None:
    export = node.export(authenticated=True)
    steps = steps_of(node.parts, ExportWork(export=export))
    results = [await step.do() for step in steps]
    node.secrets.clear()
    for step, result in zip(steps, results, strict=True):
        assert await step.observe(result) is not None


async def test_initiators_are_told_of_new_sizes(node: Node) -> None:
    export = node.export(devices=("a", "b"))
    await node.offer(export)
    node.nvmet.calls.clear()
    await resized(node.parts, export)
    assert [call[1].split("/", 2)[2] for call in node.nvmet.calls] == [
        "namespaces/1/revalidate_size",
        "namespaces/2/revalidate_size",
    ]


def test_use_is_that_of_the_devices(node: Node) -> None:
    use = NamespaceUse(
        device=node.device("b"), reads=1, read_bytes=512, read_ms=1, writes=2, written_bytes=1024, write_ms=3,
        in_flight=0, busy_ms=4,
    )  # fmt: skip
    node.blocks.uses[node.device("b")] = use
    assert uses(node.parts, node.export(devices=("b",))) == {1: use}


def test_works_are_read_from_their_records(node: Node) -> None:
    for work in (
        ExportWork(export=node.export()),
        WithdrawWork(name=SubsystemName(lease="one", epoch=1)),
        AccessWork(export=node.export(), before={str(HERE): {"2": AnaState.CHANGE}}),
    ):
        assert from_body(msgspec.json.encode(work).decode()) == work
        assert is_resumable(work)
        nqn = "nqn.2026-11.io.farbus:lease:one:1"
        assert object_of(work) == f"{'access to' if isinstance(work, AccessWork) else 'subsystem'} {nqn}"
    with pytest.raises(InvalidInput, match="not work of a target"):
        from_body("{}")


# Several addresses of a node.

ELSEWHERE = transport_address("tcp://192.0.2.1:4420")


async def test_an_address_that_the_node_has_not_got_is_told_and_the_others_serve(node: Node) -> None:
    export = node.export(addresses=(HERE, ELSEWHERE, THERE))
    steps = steps_of(node.parts, ExportWork(export=export))
    told = await forward(steps)
    assert told["missing"] == str(ELSEWHERE)
    assert {port.address for port in node.target().ports_of(export.nqn)} == {"10.0.0.7", "fd00::7"}
    # Nothing is left of the port that could not be.
    assert node.target().port_at(ELSEWHERE) is None
    # A restarted agent takes hold of it as it is; one without the record does not take it for whole.
    offered = steps[-1]
    assert await offered.observe(told) is not None
    assert await offered.observe(None) is None
    port = node.target().port_at(THERE)
    assert port is not None
    node.nvmet.kernel.unlink(f"ports/{port.id}/subsystems/{export.nqn}")
    assert await offered.observe(told) is None
    await node.withdraw(export)
    assert node.target() == node.foreign()


async def test_a_transport_that_nothing_serves_is_told_and_the_others_serve(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    roce = transport_address("rdma://10.0.0.7:4420")
    monkeypatch.setattr(node.nvmet, "no_transports", frozenset({Transport.RDMA}))
    assert (await node.offer(node.export(addresses=(HERE, roce))))["missing"] == str(roce)
    await node.withdraw(node.export(addresses=(HERE, roce)))
    with pytest.raises(Unavailable, match="module nvmet-rdma"):
        await node.offer(node.export(addresses=(roce,)))
    assert node.target() == node.foreign()


def shared(node: Node, lease: str, device: str, *addresses: TransportAddress) -> Export:
    """An export as an agent makes it at several addresses, of which the last one is a spare."""
    (namespace,) = node.export(devices=(device,)).namespaces
    return node.export(
        lease,
        namespaces=(msgspec.structs.replace(namespace, ana_group=NODE_ANA_GROUP),),
        addresses=addresses,
        states={str(addresses[-1]): {str(NODE_ANA_GROUP): AnaState.NON_OPTIMIZED}},
    )


def access(node: Node) -> dict[str, str]:
    """Return the state of the node's group at each address."""
    return {
        str(port.at): port.states[str(NODE_ANA_GROUP)] for port in node.target().ports
        if port.is_ours and str(NODE_ANA_GROUP) in port.states
    }  # fmt: skip


async def test_an_address_has_one_state_for_all_leases(node: Node) -> None:
    first, second = shared(node, "one", "a", HERE, THERE), shared(node, "two", "b", HERE, THERE)
    await node.offer(first)
    await node.offer(second)
    assert access(node) == {str(HERE): "optimized", str(THERE): "non-optimized"}
    steps = steps_of(
        node.parts, AddressWork(address=HERE, state=AnaState.INACCESSIBLE, before=AnaState.OPTIMIZED)
    )  # fmt: skip
    await forward(steps)
    assert access(node) == {str(HERE): "inaccessible", str(THERE): "non-optimized"}
    # It is no difference of a lease: that was offered just so.
    assert (differences(node.target(), first), differences(node.target(), second)) == ((), ())
    await back(steps)
    assert access(node)[str(HERE)] == "optimized"
    for export in (first, second):
        await node.withdraw(export)
    assert node.target() == node.foreign()


async def test_the_last_address_that_can_be_used_stays_so(node: Node) -> None:
    export = shared(node, "one", "a", HERE, THERE)
    await node.offer(export)
    await forward(
        steps_of(node.parts, AddressWork(address=THERE, state=AnaState.INACCESSIBLE, before=AnaState.NON_OPTIMIZED))
    )
    with pytest.raises(Conflict, match=r"address tcp://10.0.0.7:4420 of .*lease:one:1: it is its only one"):
        await forward(
            steps_of(node.parts, AddressWork(address=HERE, state=AnaState.INACCESSIBLE, before=AnaState.OPTIMIZED))
        )
    assert access(node) == {str(HERE): "optimized", str(THERE): "inaccessible"}


async def test_an_address_at_which_nothing_is_offered_has_no_state(node: Node) -> None:
    before = node.target()
    await forward(
        steps_of(node.parts, AddressWork(address=HERE, state=AnaState.INACCESSIBLE, before=AnaState.OPTIMIZED))
    )
    assert node.target() == before


# TLS.


def held(node: Node) -> list[SubsystemName]:
    return [one.identity.name for one in node.tls_keys.held()]


async def test_what_is_offered_by_tls_has_ports_of_its_own_and_its_key(node: Node) -> None:
    export = node.export(addresses=(HERE_TLS, THERE_TLS), authenticated=True)
    other = node.export("two", devices=("b",))
    await node.offer(other)
    told = await node.offer(export)
    assert differences(node.target(), export) == ()
    assert [port.tls for port in node.target().ports_of(export.nqn)] == [True, True]
    assert [port.tls for port in node.target().ports_of(other.nqn)] == [False]
    assert told[f"port.{HERE_TLS}"] != told.get(f"port.{HERE}")
    assert [one.identity for one in node.tls_keys.held()] == [tls_key_of(SECRET, export.name).identity]
    # The key is there before anybody can come, and goes when nobody can any more.
    await node.withdraw(export)
    assert held(node) == []
    assert node.target().ports_of(other.nqn)


async def test_the_key_is_in_nothing_that_is_written_to_the_target(node: Node) -> None:
    export = node.export(addresses=(HERE_TLS,))
    await node.offer(export)
    assert tls_key_of(SECRET, export.name).psk not in repr(node.nvmet.calls)
    assert not is_resumable(ExportWork(export=export))


async def test_the_key_of_an_older_epoch_ends_with_it(node: Node) -> None:
    old, new = (node.export(epoch=epoch, addresses=(HERE_TLS,)) for epoch in (1, 2))
    await node.offer(old)
    await node.offer(new)
    assert held(node) == [new.name]
    # By name alone, as what no record knows.
    await node.end(new.name)
    assert held(node) == []


async def test_a_key_that_outlived_its_subsystem_is_removed_with_what_no_record_knows(node: Node) -> None:
    export = node.export(addresses=(HERE_TLS,))
    key = tls_key_of(SECRET, export.name)
    await node.tls_keys.add(key.identity, key.psk)
    fence, remove = steps_of(node.parts, WithdrawWork(name=export.name))
    assert await fence.observe(None) == {}
    assert await remove.observe(None) is None
    await remove.do()
    assert held(node) == []
    assert await remove.observe(None) == {}


async def test_a_restarted_agent_finds_the_key_by_its_name_and_makes_another_one_anew(node: Node) -> None:
    export = node.export(addresses=(HERE_TLS,))
    await node.offer(export)
    steps = steps_of(node.parts, ExportWork(export=export))
    (step,) = (one for one in steps if one.kind == "HoldTlsKey")
    node.secrets.clear()
    assert await step.observe({}) == {}
    # Of the same name, made of another secret: as the scheduler has given it anew.
    node.secrets["one"] = "a5" * 32
    assert await step.observe({}) is None
    await step.do()
    assert [one.identity for one in node.tls_keys.held()] == [tls_key_of("a5" * 32, export.name).identity]


async def test_what_is_half_encrypted_is_refused(node: Node) -> None:
    with pytest.raises(InvalidInput, match=f"{THERE} is not encrypted, and others are".replace("[", r"\[")):
        await node.offer(node.export(addresses=(HERE_TLS, THERE)))
    assert node.target() == node.foreign()


async def test_a_port_that_others_use_in_the_clear_is_in_the_way(node: Node) -> None:
    clear = msgspec.structs.replace(HERE_TLS, tls=False)
    await node.offer(node.export("two", devices=("b",), addresses=(clear,)))
    with pytest.raises(Conflict, match="listens there without TLS for other leases") as caught:
        await node.offer(node.export(addresses=(HERE_TLS,)))
    assert "nvmeof_tls_port" in caught.value.hint


async def test_a_target_that_knows_no_tls_leaves_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path, authentication=False)
    with pytest.raises(Unavailable, match="this kernel's target knows no TLS") as caught:
        await node.offer(node.export(addresses=(HERE_TLS,)))
    assert "CONFIG_NVME_TARGET_TCP_TLS" in caught.value.hint
    await node.withdraw(node.export(addresses=(HERE_TLS,)))
    assert node.target() == Target()
    assert held(node) == []
