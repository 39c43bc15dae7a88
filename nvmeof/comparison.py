"""What a target has of Farbus's, and how it differs from what is recorded: pure comparisons, told in words."""

from __future__ import annotations

from collections.abc import Sequence

from farbus.model.nvmeof import MODEL, AnaState, Export, ExportedNamespace, SubsystemName, subsystem_name
from farbus.model.nvmet import NODE_ANA_GROUP, Target, TargetNamespace, TargetSubsystem, access_wanted


def our_subsystems(target: Target) -> tuple[SubsystemName, ...]:
    """Return the names of all subsystems of Farbus's, lower epochs first."""
    names = (subsystem_name(subsystem.nqn) for subsystem in target.subsystems)
    return tuple(sorted((name for name in names if name is not None), key=lambda name: (name.lease, name.epoch)))


def differences(target: Target, export: Export) -> tuple[str, ...]:
    """Return, in words, what is not as ``export`` has it; nothing where it is offered just so.

    Keys are not compared beyond whether there are any.
    """
    return (
        *subsystem_differences(target.subsystem(export.nqn), export),
        *host_differences(target, export),
        *offer_differences(target, export),
    )


def subsystem_differences(found: TargetSubsystem | None, export: Export) -> tuple[str, ...]:
    """Compare the subsystem and its namespaces."""
    if found is None:
        return (f"no subsystem {export.nqn}",)
    told = _compared((("serial", found.serial, export.serial), ("model", found.model, MODEL)))
    there = {namespace.nsid: namespace for namespace in found.namespaces}
    for wanted in export.namespaces:
        namespace = there.pop(wanted.nsid, None)
        if namespace is None:
            told.append(f"no namespace {wanted.nsid}")
            continue
        told += [f"namespace {wanted.nsid}: {one}" for one in _namespace_differences(namespace, wanted)]
    return (*told, *(f"namespace {nsid} on {there[nsid].device} is not recorded" for nsid in there))


def _namespace_differences(found: TargetNamespace, wanted: ExportedNamespace) -> list[str]:
    told = _compared(
        (
            ("device", found.device, wanted.device),
            ("uuid", found.uuid, wanted.identity.uuid),
            ("nguid", found.nguid, wanted.identity.nguid),
            ("ANA group", str(found.ana_group), str(wanted.ana_group)),
        )
    )
    return told if found.enabled else [*told, "it is disabled"]


def host_differences(target: Target, export: Export) -> tuple[str, ...]:
    """Compare who may connect."""
    subsystem, host = target.subsystem(export.nqn), target.host(export.name.host_nqn)
    if subsystem is None or host is None:
        return (f"no host {export.name.host_nqn}",)
    told = ["any host may connect"] if subsystem.any_host else []
    told += [f"{nqn} may connect" for nqn in subsystem.hosts if nqn != host.nqn]
    if host.nqn not in subsystem.hosts:
        told.append(f"{host.nqn} may not connect")
    if (host.authenticated, host.proves_target) != (export.authenticated, export.authenticated):
        told.append(f"{host.nqn} {'need not' if export.authenticated else 'must'} prove a key")
    return tuple(told)


def offer_differences(target: Target, export: Export) -> tuple[str, ...]:
    """Compare where it is offered, and the states of its groups there."""
    told = []
    for port in target.ports_of(export.nqn):
        if not port.is_ours or not any(port.is_at(address) for address in export.addresses):
            told.append(f"it is offered at {port}")
    for address in export.addresses:
        found = target.port_at(address)
        if found is None or export.nqn not in found.subsystems:
            told.append(f"it is not offered at {address}")
            continue
        for group in groups_of(export):
            wanted = access_wanted(export.states, address, group)
            state = found.states.get(str(group), AnaState.INACCESSIBLE)
            if group == NODE_ANA_GROUP and str(group) in found.states:
                # The address's, whatever it was when this lease was offered there.
                continue
            if state != wanted:
                told.append(f"ANA group {group} is {state} at {address}, not {wanted}")
    return tuple(told)


def _compared(pairs: Sequence[tuple[str, str, str]]) -> list[str]:
    return [f"{what} is {found or 'nothing'}, not {wanted}" for what, found, wanted in pairs if found != wanted]


def groups_of(export: Export) -> tuple[int, ...]:
    """Return the ANA groups that the namespaces are in."""
    return tuple(sorted({namespace.ana_group for namespace in export.namespaces}))
