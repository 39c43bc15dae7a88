"""What ``farbus doctor`` says of the chassis that this machine's agent has the credentials for.

No chassis is asked: one that is slow would hold up all other checks, and
``farbus fabric list`` asks them.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator

from farbus.cli.findings import Finding, Verdict
from farbus.cli.node_settings import NodeSettings
from farbus.errors import FarbusError
from farbus.linux.clock import SystemClock
from farbus.linux.pci import KernelPci, Pci

CHECK = "fabric"


def examine_fabric(settings: NodeSettings, *, pci: Pci | None = None) -> Iterator[Finding]:
    """Yield what is wrong with the files of the chassis, and with the bridges that their ports are said to lead to.

    ``settings`` are those of this machine's agent.
    """
    if settings.fabric:
        yield from _files(settings.fabric)
    if settings.fabric_ports:
        tree = (pci or KernelPci()).tree()
        for port, bridges in settings.fabric_ports.items():
            for address in bridges:
                if tree.get(address) is None:
                    yield Finding(
                        check=CHECK,
                        verdict=Verdict.WARNING,
                        found=f"fabric_ports: {port}: there is no bridge {address} on this node",
                        cure="farbus devices --tree shows the bridges; correct agent.toml",
                    )


def _files(path: str) -> Iterator[Finding]:
    # Their HTTP client takes time to load.
    from farbus.hotplug.fabric.config import make_driver, read_config  # noqa: PLC0415

    try:
        config = read_config(path)
    except FarbusError as error:
        yield Finding(
            check=CHECK, verdict=Verdict.BROKEN, found=error.message, cure=error.hint or "correct it: docs/fabric.md"
        )
        return
    told = []
    for access in config.chassis:
        if access.credentials and os.geteuid() != 0 and not os.access(access.credentials, os.R_OK):
            yield Finding(
                check=CHECK,
                verdict=Verdict.NOTE,
                found=f"chassis {access.name}: this user can't read its credentials, {access.credentials}",
                cure="run farbus doctor as root, who runs the agent",
            )
            continue
        try:
            make_driver(access, clock=SystemClock())
        except FarbusError as error:
            yield Finding(
                check=CHECK, verdict=Verdict.BROKEN, found=error.message, cure=error.hint or f"correct it in {path}"
            )
        else:
            told.append(f"{access.name} ({access.dialect}, {access.url})")
    if told:
        listing = f"farbus fabric list -c {shlex.quote(path)}"
        yield Finding(check=CHECK, verdict=Verdict.OK, found=f"{path} has {', '.join(told)}; {listing} asks them")
