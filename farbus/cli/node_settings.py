"""What this machine's agent is set to do with storage, chassis and remoting, for commands that do not ask it."""

from __future__ import annotations

import os

from farbus.cli.decoding import convert_fields, decode_fields, read_file, with_whole_paths
from farbus.errors import NotFound
from farbus.linux.lvm import GROUP
from farbus.model.storage import check_group_name
from farbus.model.value import Value

AGENT_SETTINGS = "/etc/farbus/agent.toml"


class NodeSettings(Value, frozen=True, kw_only=True):
    """Those of :class:`farbus.agent.config.AgentConfig` that concern storage, chassis, remoting and who it is."""

    credentials: str | dict[str, str] = ""
    """A directory, or the paths of three files (:class:`farbus.api.authority.Credentials`)."""
    address: str = ""
    remoting_user: str = ""
    remoting_tls: str = "on"
    remoting_rdma: str = "off"
    storage: bool = False
    use_storage: bool = False
    volume_group: str = GROUP
    nvmeof_addresses: tuple[str, ...] = ()
    nvmeof_spare_addresses: tuple[str, ...] = ()
    nvmeof_tls: str = "off"
    fabric: str = ""
    fabric_ports: dict[str, tuple[str, ...]] = {}

    @property
    def needs_rights(self) -> bool:
        """Whether the agent's unit has to allow what storage takes."""
        return self.storage or self.use_storage

    @property
    def encrypts_storage(self) -> bool:
        """Whether what goes to NVMe targets and comes from them is to be encrypted."""
        return self.nvmeof_tls == "on"

    @property
    def offers_rdma(self) -> bool:
        """Whether the NVMe target is to listen by RDMA, too."""
        return any(one.startswith("rdma://") for one in (*self.nvmeof_addresses, *self.nvmeof_spare_addresses))


def node_settings(path: str = AGENT_SETTINGS, *, must_exist: bool = False) -> NodeSettings:
    """Return what the file at ``path`` says, and what holds where it is silent or not there.

    Raises :class:`farbus.errors.InvalidInput` for one that can't be read, and where it ``must_exist``
    :class:`farbus.errors.NotFound`.
    """
    try:
        fields = decode_fields(read_file(path, what="configuration file"), name=path)
    except NotFound:
        if must_exist:
            raise
        return NodeSettings()
    ours = fields
    if isinstance(fields, dict):
        known = {name: value for name, value in fields.items() if name in NodeSettings.__struct_fields__}
        ours = with_whole_paths(known, base=os.path.dirname(path))
    settings = convert_fields(ours, NodeSettings, name=path)
    check_group_name(settings.volume_group, field=f"{path}: volume_group")
    return settings
