"""Leases: the right to use devices until it expires."""

from __future__ import annotations

import msgspec

from farbus.model.device import Route
from farbus.model.states import LeaseState
from farbus.model.value import Value
from farbus.model.volume import StorageGrant


class LeasedDevice(Value, frozen=True, kw_only=True):
    """A device under a lease with the epoch that the ledger counted for this grant."""

    device: str
    epoch: int


class Lease(Value, frozen=True, kw_only=True):
    """The right of one task's node to use devices of one node by one route.

    ``device_node`` has the devices, ``client_node`` uses them (the same for a
    local route).  ``secret`` is 32 bytes in hexadecimal; it never appears in
    argv, logs or listings.
    """

    id: str
    job: str
    task: str
    user: str
    client_node: str
    device_node: str
    route: Route
    devices: tuple[LeasedDevice, ...]
    term: int
    secret: str
    storage: StorageGrant | None = None
    """What it gives of drives; None for devices that are given whole."""

    @property
    def is_room(self) -> bool:
        """Whether it gives room on drives that others share, rather than devices that are its own."""
        return self.storage is not None and not self.storage.volume

    def without_secret(self) -> Lease:
        """Return the lease as a listing may show it."""
        return msgspec.structs.replace(self, secret="")


class LeaseStatus(Value, frozen=True, kw_only=True):
    """A lease, without its secret, with its state and the seconds it has left."""

    lease: Lease
    state: LeaseState
    expires_in_s: float
    endpoint: str = ""
    """``ADDRESS:PORT`` of the remoting supervisor, once it is prepared."""
    trouble: str = ""
    """Why it can't be released, with its story; empty when nothing is wrong."""


class PeerLease(Value, frozen=True, kw_only=True):
    """A side of a lease as one agent tells the other: ``device_side`` when its node has the devices."""

    lease_id: str
    device_side: bool
    devices: tuple[LeasedDevice, ...]


class PeerRequest(Value, frozen=True, kw_only=True):
    """What one agent asks another: to renew ``leases``, and to end those that it has ``released`` by itself.

    ``peer_endpoint`` is where the asking agent serves.
    """

    leases: tuple[PeerLease, ...] = ()
    released: tuple[PeerLease, ...] = ()
    peer_endpoint: str = ""


class PeerReply(Value, frozen=True, kw_only=True):
    """Which leases the other side holds too, and which it does not, by id."""

    renewed: tuple[str, ...] = ()
    void: tuple[str, ...] = ()
