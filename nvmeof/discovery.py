"""What a host is offered: a discovery service, and those that it refers to.

Farbus does not need it to connect: the scheduler says where a namespace is.
It serves to look what a target of whatever make offers, and why nothing is
found.
"""

from __future__ import annotations

from farbus.errors import FarbusError
from farbus.linux.nvme import NvmeFabrics
from farbus.model.nvmeof import DiscoveryKind, DiscoveryRecord, TransportAddress
from farbus.model.value import Value

MAX_SERVICES = 16
"""Discovery services that are asked for one question: referrals come from other machines, and may lead in circles."""


class Offers(Value, frozen=True, kw_only=True):
    """Subsystems that a host is offered, and the services that could not be asked, with the reason."""

    subsystems: tuple[DiscoveryRecord, ...]
    asked: tuple[TransportAddress, ...]
    silent: tuple[str, ...] = ()


async def discover(nvme: NvmeFabrics, address: TransportAddress, *, host_nqn: str, host_id: str) -> Offers:
    """Ask a discovery service and all that it refers to, each once.

    Raises what the first one's trouble was; that of others is told.
    """
    asked: list[TransportAddress] = []
    to_ask = [address]
    found: dict[DiscoveryRecord, None] = {}
    silent: list[str] = []
    while to_ask and len(asked) < MAX_SERVICES:
        at = to_ask.pop(0)
        if at in asked:
            continue
        asked.append(at)
        try:
            records = await nvme.discover(at, host_nqn=host_nqn, host_id=host_id)
        except FarbusError as error:
            if at == address:
                raise
            silent.append(str(error))
            continue
        found |= {record: None for record in records if record.kind is DiscoveryKind.SUBSYSTEM}
        to_ask += [record.address for record in records if record.kind is DiscoveryKind.REFERRAL]
    return Offers(subsystems=tuple(found), asked=tuple(asked), silent=tuple(silent))
