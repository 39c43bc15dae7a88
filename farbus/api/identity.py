"""Who calls, and what each role may call.

A certificate's subject says who its holder is: the common name is the name,
the organisation is the role.  A user on a node with an agent needs none: the
agent's socket takes the kernel's word (SO_PEERCRED) and the agent vouches for
the user with metadata that the scheduler believes of node certificates only.
"""

from __future__ import annotations

import enum
import fnmatch
import re
from collections.abc import Mapping

from farbus.errors import NotPermitted
from farbus.model.value import Value

USER_METADATA = "farbus-user"
ROLE_METADATA = "farbus-role"
LOCAL_METADATA = "farbus-local"
"""``1`` asks the agent whose socket it is to move a device by itself, without the scheduler."""

_NAME = re.compile(r"[A-Za-z0-9_.@][A-Za-z0-9_.@-]{0,62}")


class Role(enum.StrEnum):
    """What the holder of a certificate is."""

    SCHEDULER = "scheduler"
    NODE = "node"
    USER = "user"
    OPERATOR = "operator"


class Identity(Value, frozen=True, kw_only=True):
    """A caller.  ``node`` is the node that vouches for a user of its own."""

    name: str
    role: Role
    node: str = ""
    operates: bool = False
    """A user who operates the node that vouches for him, and nothing else of the cluster."""

    @property
    def is_operator(self) -> bool:
        """Say whether the caller may see and end what belongs to others."""
        return self.role is Role.OPERATOR

    def may_manage(self, owner: str) -> bool:
        """Say whether the caller may see and end what belongs to ``owner``."""
        return self.is_operator or self.name == owner

    def may_operate(self, node: str) -> bool:
        """Say whether the caller may cordon and drain ``node`` and its devices."""
        return self.is_operator or (self.operates and self.node == node)


PEOPLE = frozenset({Role.USER, Role.OPERATOR})
OPERATORS = frozenset({Role.OPERATOR})

METHOD_ROLES: Mapping[str, frozenset[Role]] = {
    "/farbus.v1.Cluster/Submit": PEOPLE,
    "/farbus.v1.Cluster/ListJobs": PEOPLE,
    "/farbus.v1.Cluster/StreamJobs": PEOPLE,
    "/farbus.v1.Cluster/GetJob": PEOPLE,
    "/farbus.v1.Cluster/WatchJob": PEOPLE,
    "/farbus.v1.Cluster/CancelJob": PEOPLE,
    "/farbus.v1.Cluster/ReadLogs": PEOPLE,
    "/farbus.v1.Cluster/ListNodes": PEOPLE,
    "/farbus.v1.Cluster/ListDevices": PEOPLE,
    "/farbus.v1.Cluster/ListLeases": PEOPLE,
    "/farbus.v1.Cluster/Explain": PEOPLE,
    "/farbus.v1.Cluster/GetCluster": PEOPLE,
    "/farbus.v1.Cluster/Hold": PEOPLE,
    "/farbus.v1.Cluster/GetTelemetry": PEOPLE,
    "/farbus.v1.Cluster/ListQuotas": PEOPLE,
    "/farbus.v1.Cluster/ListProfiles": PEOPLE,
    "/farbus.v1.Cluster/Cordon": OPERATORS,
    "/farbus.v1.Cluster/Uncordon": OPERATORS,
    "/farbus.v1.Cluster/Drain": OPERATORS,
    "/farbus.v1.Cluster/Defragment": OPERATORS,
    "/farbus.v1.Cluster/Forget": OPERATORS,
    "/farbus.v1.Cluster/SetProfile": OPERATORS,
    "/farbus.v1.Cluster/ForgetProfile": OPERATORS,
    "/farbus.v1.Cluster/MoveDevice": OPERATORS,
    "/farbus.v1.Cluster/ListMoves": OPERATORS,
    "/farbus.v1.Cluster/CancelMove": OPERATORS,
    "/farbus.v1.Cluster/CreateVolume": PEOPLE,
    "/farbus.v1.Cluster/ResizeVolume": PEOPLE,
    "/farbus.v1.Cluster/DeleteVolume": PEOPLE,
    "/farbus.v1.Cluster/ListVolumes": PEOPLE,
    "/farbus.v1.Cluster/AttachVolume": OPERATORS,
    "/farbus.v1.Cluster/DetachVolume": OPERATORS,
    "/farbus.v1.Cluster/AdoptVolume": OPERATORS,
    "/farbus.v1.Cluster/ListChassis": OPERATORS,
    "/farbus.v1.Cluster/ReadAudit": OPERATORS,
    "/farbus.v1.Staging/Missing": PEOPLE,
    "/farbus.v1.Staging/Put": PEOPLE,
    "/farbus.v1.Staging/Get": frozenset({Role.NODE}),
    "/farbus.v1.Staging/PutOutput": frozenset({Role.NODE}),
    "/farbus.v1.Staging/ReceivedOutput": frozenset({Role.NODE}),
    "/farbus.v1.Staging/ListOutput": PEOPLE,
    "/farbus.v1.Staging/GetOutput": PEOPLE,
    "/farbus.v1.NodeSession/Session": frozenset({Role.NODE}),
    "/farbus.v1.Enrollment/Renew": frozenset({Role.NODE, Role.USER, Role.OPERATOR}),
    "/farbus.v1.Peer/Renew": frozenset({Role.NODE}),
    "/farbus.v1.Peer/AskChassis": frozenset({Role.NODE}),
}
"""Roles that may call each method; a method that is not here may be called by nobody."""

READ_METHODS = frozenset(
    {
        "/farbus.v1.Cluster/ListJobs",
        "/farbus.v1.Cluster/StreamJobs",
        "/farbus.v1.Cluster/GetJob",
        "/farbus.v1.Cluster/WatchJob",
        "/farbus.v1.Cluster/ReadLogs",
        "/farbus.v1.Cluster/ListNodes",
        "/farbus.v1.Cluster/ListDevices",
        "/farbus.v1.Cluster/ListLeases",
        "/farbus.v1.Cluster/Explain",
        "/farbus.v1.Cluster/GetCluster",
        "/farbus.v1.Cluster/GetTelemetry",
        "/farbus.v1.Cluster/ListQuotas",
        "/farbus.v1.Cluster/ListProfiles",
        "/farbus.v1.Cluster/ListMoves",
        "/farbus.v1.Cluster/ListVolumes",
        "/farbus.v1.Cluster/ListChassis",
        "/farbus.v1.Cluster/ReadAudit",
        "/farbus.v1.Staging/Missing",
        "/farbus.v1.Staging/Get",
        "/farbus.v1.Staging/ReceivedOutput",
        "/farbus.v1.Staging/ListOutput",
        "/farbus.v1.Staging/GetOutput",
    }
)
"""Methods that change nothing: only those who were refused them stand in the audit log."""


NODE_OPERATIONS = frozenset(
    f"/farbus.v1.Cluster/{name}" for name in ("Cordon", "Uncordon", "Drain", "AttachVolume", "DetachVolume")
)
"""Methods that who operates one node may call; their handlers ask :meth:`Identity.may_operate` about which one."""


class Vouching(Value, frozen=True, kw_only=True):
    """How far the scheduler believes nodes: names and patterns of nodes as in fnmatch(3) (docs/decisions/0010)."""

    users: tuple[str, ...] = ("*",)
    """Nodes that may speak for users at all."""
    operators: tuple[str, ...] = ()
    """Nodes whose operators operate the cluster, and not that node alone."""

    def believed(self, caller: Identity, method: str) -> Identity:
        """Return what a caller is who may call ``method`` by a node's word; others stay what they are.

        Raises :class:`NotPermitted` for what that node's word is not enough.
        """
        if not caller.node or (caller.is_operator and _any(caller.node, self.operators)):
            return caller
        who = f"{caller.name} of node {caller.node}"
        if caller.is_operator:
            caller = Identity(name=caller.name, role=Role.USER, node=caller.node, operates=True)
            if method in NODE_OPERATIONS:
                return caller
        if caller.role not in METHOD_ROLES[method]:
            raise NotPermitted(
                f"{who} operates that node only, and may not call {method.rpartition('/')[2]}",
                hint="use an operator's certificate, or name the node in the scheduler's operator_nodes",
            )
        if not _any(caller.node, self.users):
            raise NotPermitted(
                f"node {caller.node} may not speak for its users",
                hint="use a node of the scheduler's user_nodes, or a certificate of your own",
            )
        return caller


BELIEVE_USERS = Vouching()
"""Nodes speak for their users; their operators operate that node alone."""


def _any(node: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(node, pattern) for pattern in patterns)


def valid_name(name: str) -> bool:
    """Say whether ``name`` can name a node or a user: 1 to 63 of letters, digits and ``_.@-``."""
    return _NAME.fullmatch(name) is not None


def resolve_caller(certificate: Identity, metadata: Mapping[str, str], method: str) -> Identity:
    """Return on whose behalf ``method`` is called, given the certificate's holder and the call's metadata.

    Raises :class:`NotPermitted` where the role may not call it, or where
    somebody other than a node vouches for a user.
    """
    caller = certificate
    if USER_METADATA in metadata:
        if certificate.role is not Role.NODE:
            raise NotPermitted(f"{certificate.role} {certificate.name} can't vouch for another user")
        name, role = metadata[USER_METADATA], metadata.get(ROLE_METADATA, Role.USER)
        if not valid_name(name) or role not in PEOPLE:
            raise NotPermitted(f"node {certificate.name} vouches for an impossible user: {role} {name}")
        caller = Identity(name=name, role=Role(role), node=certificate.name)
    if caller.role not in METHOD_ROLES.get(method, frozenset()):
        roles = " or ".join(sorted(METHOD_ROLES.get(method, frozenset())))
        raise NotPermitted(
            f"{caller.role} {caller.name} may not call {method.rpartition('/')[2]}",
            hint=f"it takes the role {roles}; docs/security.md says who has which" if roles else "",
        )
    return caller
