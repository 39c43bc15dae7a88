"""What ``farbus doctor`` says of PCI hot-plug: ports and their windows, devices without a place or a driver."""

from __future__ import annotations

import os
from collections.abc import Iterator

from farbus.cli.findings import Finding, Verdict
from farbus.hotplug.report import cure_of, hotplug_ports, is_worth_a_look, kind_of
from farbus.hotplug.working import wedged
from farbus.linux.pci import KernelPci, Pci
from farbus.model.pci import PciTree

GPU_PORT_OPTION = "hpmmioprefsize=256G"
"""What takes any GPU of today: 128 GiB of memory and what it needs besides."""


def examine_pci(pci: Pci | None = None, *, root: bool | None = None) -> Iterator[Finding]:
    """Yield the findings; ``root`` says whether this user may tell the kernel what to do."""
    door = pci or KernelPci()
    tree = door.tree()
    if not tree.functions:
        yield Finding(check="pci", verdict=Verdict.NOTE, found="this machine has no PCI bus")
        return
    yield from _removals(tree)
    yield from _ports(tree, door.release())
    yield from _places(tree)
    yield from _drivers(tree, door)
    if not (os.geteuid() == 0 if root is None else root):
        yield Finding(
            check="pci permissions",
            verdict=Verdict.NOTE,
            found="this user may neither attach nor detach devices, nor see who holds them",
            cure="run the agent, and farbus attach and detach, as root",
        )


def _removals(tree: PciTree) -> Iterator[Finding]:
    if stuck := tree.removing():
        error = wedged(tuple(function.address for function in stuck), since=0)
        yield Finding(check="pci removal", verdict=Verdict.BROKEN, found=error.message, cure=error.hint)


def _ports(tree: PciTree, kernel: str) -> Iterator[Finding]:
    ports = hotplug_ports(tree)
    if not ports:
        yield Finding(
            check="pci ports",
            verdict=Verdict.NOTE,
            found="no slot for hot-plug: nothing can be attached here",
            cure="the firmware must give hot-plug to the kernel (ACPI _OSC), or boot with pcie_ports=native",
        )
        return
    small = [port for port in ports if not port.takes_gpus]
    if not small:
        yield Finding(check="pci ports", verdict=Verdict.OK, found=f"{len(ports)} with room for GPUs")
        return
    options = next((word for word in kernel.split() if word.startswith("pci=")), "no pci= option")
    yield Finding(
        check="pci ports",
        verdict=Verdict.NOTE,
        found=f"{len(small)} of {len(ports)} have windows for drives, not for GPUs ({options}): {small[0]}",
        cure=f"for GPUs boot with pci=realloc,{GPU_PORT_OPTION}; an empty port may grow without",
    )


def _places(tree: PciTree) -> Iterator[Finding]:
    for function in tree.functions:
        if function.bars_unassigned and not function.is_bridge:
            told = ", ".join(f"BAR {number}" for number in function.bars_unassigned)
            yield Finding(
                check="pci windows",
                verdict=Verdict.WARNING,
                found=f"{told} of {function.address} ({kind_of(function)}) has no place: the device can't work",
                cure=cure_of(tree, function),
            )
        elif function.link is not None and function.link.degraded and is_worth_a_look(function):
            yield Finding(
                check="pci link",
                verdict=Verdict.NOTE,
                found=f"{function.address} runs at {function.link}",
                cure="look at the cable, the riser and the slot",
            )


def _drivers(tree: PciTree, pci: Pci) -> Iterator[Finding]:
    for function in tree.functions:
        if not is_worth_a_look(function) or function.driver or function.removing:
            continue
        module = pci.driver_for(vendor=function.vendor, device=function.device, pci_class=function.pci_class)
        yield Finding(
            check="pci drivers",
            verdict=Verdict.WARNING,
            found=f"{function.address} ({kind_of(function)}, {function.ids}) has no driver",
            cure=f"modprobe {module}, and look at dmesg" if module else "install the driver for this kernel",
        )
