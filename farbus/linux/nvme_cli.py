"""How each version of nvme-cli is told to connect, and what it answers: pure, so that versions that are not here can
be tested on what they print.

============  =====================================================================================================
2.3           reads keys from a JSON configuration, all else from its arguments
2.13          with a configuration takes all from it and ignores the arguments, and gets ``ctrl_loss_tmo`` wrong
              (600 whatever it says); fails without a word unless ``--verbose``, which with ``-vv`` prints keys
3.x           the configuration is INI (nvme-fabrics.conf(5)), keys are called ``kxchap``, logs are ``nvme log NAME``,
              and ``--owner`` keeps ``nvme disconnect-all`` of others away
============  =====================================================================================================

So each is given both, arguments and a configuration, and what came of it is
read in sysfs.  2.3 and 2.13 were tried in guests; 3.x is by its documentation
(Documentation/ of v3.0-rc1) alone.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

import msgspec

from farbus.errors import Conflict, FarbusError, InvalidInput, NotPermitted, TimedOut, Unavailable
from farbus.linux.tls_keys import DAEMON_HINT
from farbus.model.nvmeof import (
    Connection,
    DiscoveryKind,
    DiscoveryRecord,
    SmartLog,
    Transport,
    TransportAddress,
    normal_address,
)
from farbus.model.value import Value

FIRST_WITH_INI = (3,)
"""Version from which on configurations are INI."""

OWNER = "farbus"
"""Recorded of each controller where nvme-cli has a register of owners."""

TLS_OPTION = "tls"
"""Of nvme-cli's arguments and configurations, and among what the kernel's /dev/nvme-fabrics takes."""

MAX_RECORDS = 4096
"""Entries of a discovery log that are looked at: it comes from another machine."""

DATA_UNIT_BYTES = 512_000
"""Unit of Data Units Read and Written: a thousand of 512 bytes (NVM Express Base 2.0, 5.16.1.3)."""

ZERO_CELSIUS_K = 273

_SECRET = re.compile(r"DHHC-1:[^\s',]+|NVMeTLSkey-1:[^\s',]+")


class NvmeCli(Value, frozen=True, kw_only=True):
    """An nvme-cli as it was found: its version, and the long options that ``nvme connect`` takes."""

    version: tuple[int, ...]
    options: frozenset[str] = frozenset()

    @property
    def has_ini(self) -> bool:
        """Say whether configurations are INI, and JSON else."""
        return self.version >= FIRST_WITH_INI

    @property
    def has_tls(self) -> bool:
        """Say whether it can ask the kernel for TLS."""
        return TLS_OPTION in self.options

    def __str__(self) -> str:
        return ".".join(map(str, self.version))


class Call(NamedTuple):
    """What to run: arguments, and what it is to find in its configuration, which may hold a key."""

    arguments: tuple[str, ...]
    configuration: str = ""


def parse_version(text: str) -> tuple[int, ...]:
    """Read what ``nvme version`` prints; raise :class:`Unavailable` for what is none."""
    match = re.search(r"^nvme version v?(\d+(?:\.\d+)*)", text, re.MULTILINE)
    if match is None:
        raise Unavailable(f"nvme version: {text.strip()[:80]!r} is no version", hint="is this nvme-cli?")
    return tuple(int(part) for part in match.group(1).split("."))


def parse_options(help_text: str) -> frozenset[str]:
    """Read which long options the help of a command names."""
    return frozenset(re.findall(r"--([a-z][a-z0-9_-]+)", help_text))


def connect_call(cli: NvmeCli, connection: Connection, address: TransportAddress, *, key: str = "") -> Call:
    """Return how to connect a controller at one address; ``key`` goes into the configuration alone."""
    name = connection.name
    # Without both names 2.13 would connect again what other hosts of this machine are about to disconnect.
    arguments = ["connect", f"--hostnqn={name.host_nqn}", f"--hostid={name.host_id}"]
    if cli.has_ini:
        if "owner" in cli.options:
            arguments.append(f"--owner={OWNER}")
        return Call((*arguments, "--verbose"), _ini(connection, address, key))
    arguments += [f"--transport={address.transport}", f"--nqn={connection.nqn}"]
    if address.transport is not Transport.LOOP:
        arguments += [f"--traddr={address.address}", f"--trsvcid={address.service}"]
    numbers = _numbers(connection)
    arguments += [f"--{option}={number}" for option, number in numbers.items()]
    arguments += [f"--{TLS_OPTION}"] if address.tls else []
    # Once: twice would print the key.
    return Call((*arguments, "--verbose"), _json(connection, address, key, numbers))


def _numbers(connection: Connection) -> dict[str, int]:
    numbers = {
        "ctrl-loss-tmo": connection.loss_s,
        "reconnect-delay": connection.reconnect_delay_s,
        "keep-alive-tmo": connection.keep_alive_s,
    }
    return {**numbers, **({"nr-io-queues": connection.io_queues} if connection.io_queues else {})}


def _json(connection: Connection, address: TransportAddress, key: str, numbers: dict[str, int]) -> str:
    port: dict[str, Any] = {"transport": str(address.transport)}
    if address.transport is not Transport.LOOP:
        port |= {"traddr": address.address, "trsvcid": str(address.service)}
    port |= {option.replace("-", "_"): number for option, number in numbers.items()}
    if address.tls:
        # Its key the kernel finds by both names (nvme_tls_psk_default).
        port[TLS_OPTION] = True
    host: dict[str, Any] = {"hostnqn": connection.name.host_nqn, "hostid": connection.name.host_id}
    if key:
        host["dhchap_key"] = key
    return json.dumps([{**host, "subsystems": [{"nqn": connection.nqn, "ports": [port]}]}])


def _ini(connection: Connection, address: TransportAddress, key: str) -> str:
    controller = f"transport={address.transport}"
    if address.transport is not Transport.LOOP:
        controller += f";traddr={address.address};trsvcid={address.service}"
    lines = [
        "[Host]",
        f"hostnqn = {connection.name.host_nqn}",
        f"hostid = {connection.name.host_id}",
        *([f"kxchap-secret = {key}"] if key else []),
        "[Subsystem]",
        f"nqn = {connection.nqn}",
        *(f"{option} = {number}" for option, number in _numbers(connection).items()),
        *([f"{TLS_OPTION} = true"] if address.tls else []),
        f"controller = {controller}",
    ]
    return "".join(f"{line}\n" for line in lines)


def discover_call(address: TransportAddress, *, host_nqn: str, host_id: str, persistent: bool = False) -> Call:
    """Return how to read the discovery log at an address; ``persistent`` leaves its controller for events."""
    arguments = ["discover", f"--transport={address.transport}", f"--hostnqn={host_nqn}", f"--hostid={host_id}"]
    if address.transport is not Transport.LOOP:
        arguments += [f"--traddr={address.address}", f"--trsvcid={address.service}"]
    # What somebody else has configured on this machine is not to be connected.
    arguments += ["--config=none", "--output-format=json", *(["--persistent"] if persistent else [])]
    return Call(tuple(arguments))


def smart_call(cli: NvmeCli, device: str) -> Call:
    """Return how to read a controller's SMART log."""
    words = ("log", "smart") if cli.has_ini else ("smart-log",)
    return Call((*words, device, "--output-format=json"))


_KINDS = (
    ("referral", DiscoveryKind.REFERRAL),
    ("current", DiscoveryKind.CURRENT),
    ("subsystem", DiscoveryKind.SUBSYSTEM),
)
"""Words of nvme-cli's SUBTYPE, the first that is there decides."""


def parse_discovery(text: str) -> tuple[DiscoveryRecord, ...]:
    """Read a discovery log; entries of transports that Farbus has not, or that make no sense, are left out.

    Raises :class:`Unavailable` for what is no log at all.
    """
    # A service that offers nothing may be answered by nothing, and by words.
    log = _object(text or "{}", "discovery log")
    records = log.get("records", [])
    if not isinstance(records, list):
        raise Unavailable("discovery log: no list of records")
    return tuple(found for record in records[:MAX_RECORDS] if (found := _record(record)) is not None)


def _record(record: Any) -> DiscoveryRecord | None:
    try:
        subtype = str(record["subtype"])
        kind = next(kind for word, kind in _KINDS if word in subtype)
        transport = Transport(record["trtype"])
        return DiscoveryRecord(
            kind=kind,
            nqn=str(record["subnqn"]),
            address=TransportAddress(
                transport=transport,
                address=normal_address(str(record["traddr"]).strip()) if transport is not Transport.LOOP else "",
                service=int(record["trsvcid"]) if transport is not Transport.LOOP else 0,
            ),
        )
    except (KeyError, TypeError, ValueError, StopIteration, InvalidInput):
        return None


def parse_smart_log(text: str) -> SmartLog:
    """Read a SMART log; numbers are strings in some versions.  Raises :class:`Unavailable` for what is none."""
    log = _object(text, "SMART log")
    if "critical_warning" not in log:
        raise Unavailable("SMART log: no critical_warning in it")

    def number(name: str) -> int:
        value = log.get(name, 0)
        if isinstance(value, dict):
            # Where somebody has asked for more words, the byte is the "value" beside its bits.
            value = value.get("value", 0)
        try:
            return int(value)
        except (TypeError, ValueError) as error:
            raise Unavailable(f"SMART log: {name} is {value!r}, no number") from error

    kelvin = number("temperature")
    return SmartLog(
        critical_warning=number("critical_warning"),
        temperature_c=kelvin - ZERO_CELSIUS_K if kelvin else None,
        spare_percent=number("avail_spare"),
        spare_threshold_percent=number("spare_thresh"),
        used_percent=number("percent_used"),
        media_errors=number("media_errors"),
        error_log_entries=number("num_err_log_entries"),
        unsafe_shutdowns=number("unsafe_shutdowns"),
        power_on_hours=number("power_on_hours"),
        read_bytes=number("data_units_read") * DATA_UNIT_BYTES,
        written_bytes=number("data_units_written") * DATA_UNIT_BYTES,
    )


def _object(text: str, what: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise Unavailable(f"{what}: not JSON: {without_secrets(text).strip()[:80]!r}") from error


def without_secrets(text: str) -> str:
    """Return text without keys, whoever has printed them."""
    return _SECRET.sub("(a key)", text)


class _Cause(NamedTuple):
    words: str
    """What the C library calls the kernel's error."""
    says: str
    hint: str = ""
    error: type[FarbusError] = Unavailable


_ANOTHER_KEY = "the target has been told another key for this host, or none"
_CAUSES = (
    _Cause(
        "Key was rejected by service", "authentication failed: the target refuses the key", _ANOTHER_KEY, NotPermitted
    ),
    _Cause(
        "Required key not available", "authentication failed: the target wants a key, and there is none", "",
        NotPermitted,
    ),
    _Cause(
        "Key has expired", "authentication failed: the key has expired", "", NotPermitted,
    ),
    _Cause("Connection refused", "nobody listens at this address", "is the target's port there?"),
    _Cause("Connection timed out", "no answer", "is the node on, and the network between?"),
    _Cause("Network is unreachable", "no route to the address"),
    _Cause("No route to host", "no route to the address"),
    _Cause("Connection reset by peer", "the target has closed the connection"),
    _Cause(
        "Input/output error", "the target refuses: it has no such subsystem, or does not know this host",
        "has the lease ended there?",
    ),
    _Cause(
        "Operation already in progress", "the kernel is connecting or disconnecting it already", "see dmesg", Conflict
    ),
    _Cause("Operation not permitted", "not permitted", "only root may connect", NotPermitted),
    _Cause("Permission denied", "not permitted", "only root may connect", NotPermitted),
    _Cause("Interrupted system call", "interrupted", "", TimedOut),
)  # fmt: skip


_TLS_CAUSES = (
    _Cause(
        "Required key not available",
        "there is no key of TLS for it in the keyring, or none to prove this host by", "attach it again", NotPermitted,
    ),
    _Cause(
        "Connection timed out",
        "the handshake of TLS failed, or there is no answer", "journalctl -u tlshd says why, on both nodes",
    ),
    _Cause(
        "Permission denied", "the handshake of TLS failed", "journalctl -u tlshd says why, on both nodes", NotPermitted,
    ),
    _Cause("No such process", "nobody shakes hands for the kernel", DAEMON_HINT),
)  # fmt: skip
"""What is otherwise where TLS was asked for: a target's tlshd that does not know the key closes the connection, and
this node's says ETIMEDOUT for that."""


def connect_error(address: TransportAddress, said: str) -> FarbusError:
    """Return the error of a connect that did not, in one line, by what nvme-cli has said."""
    causes = (*_TLS_CAUSES, *_CAUSES) if address.tls else _CAUSES
    for cause in causes:
        if cause.words in said:
            return cause.error(f"connect {address}: {cause.says}", hint=cause.hint)
    lines = [line.strip() for line in without_secrets(said).splitlines() if line.strip()]
    told = lines[0][:200] if lines else "nvme-cli says nothing"
    return Unavailable(f"connect {address}: {told}", hint="see dmesg")
