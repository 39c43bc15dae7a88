"""Who asks which chassis: one agent at a time, named in a term of the chassis's own.  Pure.

Agents say which chassis they have the credentials for.  One of those with a
session serves it until that session ends; the next one is named in a higher
term, which is on the disk before anybody hears of it.  What the serving agent
reads is what the cluster knows of devices that no node has; so who may serve
which chassis is a setting (``chassis_servers``), and what a node offers beside
it is passed over.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping

from farbus.model.fabric import ChassisStatus
from farbus.scheduler import events
from farbus.scheduler.move_records import ChassisRecord
from farbus.scheduler.operations import Operations


class ServingChassis(Operations):
    """The namings, and what is read of chassis."""

    chassis_servers: Mapping[str, tuple[str, ...]] = {}
    """By chassis, names and patterns of the nodes that may serve it; empty where all nodes may serve all."""

    def may_serve(self, node: str, chassis: str) -> bool:
        """Say whether a node's agent may be named to serve a chassis."""
        if not self.chassis_servers:
            return True
        return any(fnmatch.fnmatchcase(node, pattern) for pattern in self.chassis_servers.get(chassis, ()))

    def chassis_statuses(self) -> tuple[ChassisStatus, ...]:
        """Return all chassis, by name."""
        return tuple(
            ChassisStatus(
                name=name, served_by=record.served_by, term=record.term, view=record.view, trouble=record.trouble
            )
            for name, record in sorted(self.chassis.items())
        )

    def has_pools(self) -> bool:
        """Say whether an agent serves a chassis and has read it, so that devices can be moved."""
        return any(record.served_by and record.view is not None for record in self.chassis.values())

    def _node_joined(self, event: events.NodeJoined) -> None:
        super()._node_joined(event)
        name = event.node.name
        for chassis in event.chassis:
            if not self.may_serve(name, chassis):
                continue
            record = self.chassis.setdefault(chassis, ChassisRecord(name=chassis))
            record.offers.add(name)
        for record in self.chassis.values():
            if not record.served_by and record.offers:
                self._name_server(record)
                self._chassis_changed(record)
            elif self._is_concerned(record, name):
                self._tell_server(record, name)

    def _forget_commands(self, name: str) -> None:
        """A session has ended: another agent serves what this one did."""
        super()._forget_commands(name)
        for record in self.chassis.values():
            record.offers.discard(name)
            if record.served_by == name:
                record.served_by = record.trouble = ""
                if record.offers:
                    self._name_server(record)
                self._chassis_changed(record)

    def _chassis_changed(self, record: ChassisRecord) -> None:
        """Have rounds look again at what a chassis can give to whom."""
        were_shared = self._slots is not None and self._slots.shares_names
        self._slots = None
        self.shape += 1
        concerned = record.nodes()
        if len(self.chassis) > 1 and (were_shared or self.slots.shares_names):
            # A name that two chassis have, or have no longer, changes what either can give.
            concerned = set().union(*(each.nodes() for each in self.chassis.values()))
        self._views.changed_nodes |= concerned & self.nodes.keys()
        self._views.changed_devices |= self.devices_of_node[""]
        self._want_round()

    def _name_server(self, record: ChassisRecord) -> None:
        record.term += 1
        record.served_by = min(record.offers)
        self._effects.append(events.PersistChassis(name=record.name, term=record.term))
        for name in sorted(self.nodes):
            if self._is_concerned(record, name):
                self._tell_server(record, name)

    def _is_concerned(self, record: ChassisRecord, name: str) -> bool:
        """Say whether a node has to know who serves a chassis: it has its credentials, or a cable to it."""
        return name in record.offers or name in record.nodes()

    def _tell_server(self, record: ChassisRecord, name: str) -> None:
        node = self.nodes[name]
        if record.served_by and node.connected:
            address = "" if record.served_by == name else self._peer_endpoint(record.served_by)
            self._send(
                node,
                events.ServeChassis(chassis=record.name, term=record.term, node=record.served_by, address=address),
            )

    def _chassis_reported(self, event: events.ChassisReported) -> None:
        """Take what the serving agent has read; what one from an earlier term says is past."""
        record = self.chassis.get(event.view.chassis)
        if self._session(event.node, event.session) is None or record is None:
            return
        if (record.served_by, record.term) != (event.node, event.term):
            return
        record.trouble = event.trouble
        known = record.nodes()
        self._chassis_changed(record)
        record.view = event.view
        record.parallel = event.parallel
        if event.history is not None:
            record.history = event.history
        self._chassis_changed(record)
        for name in sorted((record.nodes() - known - record.offers) & self.nodes.keys()):
            self._tell_server(record, name)
