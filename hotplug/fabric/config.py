"""Which chassis there are and how to speak to them (``fabric.toml``), and drivers made of it."""

from __future__ import annotations

import os
import stat
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from farbus.errors import InvalidInput, NotPermitted
from farbus.hotplug.fabric.driver import Driver
from farbus.hotplug.fabric.h3 import H3Driver, KnownDevice
from farbus.hotplug.fabric.http import HttpTransport
from farbus.hotplug.fabric.redfish import RedfishDriver
from farbus.hotplug.fabric.redfish_client import Credentials
from farbus.linux.clock import Clock
from farbus.model.fabric import MAX_NAME, Dialect, RedfishStyle

MAX_CREDENTIALS_BYTES = 4096
MAX_PCI_ID = 0xFFFF

_CREDENTIALS = 'it has two lines: user = "..." and password = "..."'


class ChassisAccess(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One chassis: where it serves which dialect, and what it can't tell itself.

    ``ports`` names the node at each port; ``devices`` what is known of devices
    by what an H3 chassis calls them.  ``certificate`` is the very certificate
    that a Redfish service shows, ``authority`` who signed it (either; the
    system's authorities without both); ``credentials`` a file with ``user`` and
    ``password`` that only its owner can read.  ``parallel`` is how many
    requests it takes at once.
    """

    name: str
    dialect: Dialect
    url: str
    ports: dict[str, str] = {}
    devices: dict[str, KnownDevice] = {}
    certificate: str = ""
    authority: str = ""
    credentials: str = ""
    style: RedfishStyle = RedfishStyle.ZONES
    chassis_id: str = ""
    fabric_id: str = ""
    parallel: int = 1


class FabricConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All chassis. ``history`` is a directory where measured times are kept, from which deadlines are learned.

    Paths are relative to the file's directory: commands and agents, which start elsewhere, share it.
    """

    chassis: tuple[ChassisAccess, ...]
    history: str = ""

    def below(self, directory: Path) -> FabricConfig:
        """Return it with the paths of all files in ``directory``, unless they are absolute."""

        def placed(path: str) -> str:
            return str(directory / path) if path else ""

        return msgspec.structs.replace(
            self,
            history=placed(self.history),
            chassis=tuple(
                msgspec.structs.replace(
                    each,
                    certificate=placed(each.certificate),
                    authority=placed(each.authority),
                    credentials=placed(each.credentials),
                )
                for each in self.chassis
            ),
        )


def read_config(path: str) -> FabricConfig:
    """Read ``fabric.toml``, with the paths in it as it means them; raise :class:`InvalidInput` for what is none."""
    try:
        with open(path, "rb") as file:
            fields = tomllib.load(file)
    except OSError as error:
        raise InvalidInput(f"fabric: {path}: {error.strerror}", hint="leave fabric out where there is none") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"fabric: {path}: not TOML: {error}") from error
    try:
        config = msgspec.convert(fields, FabricConfig).below(Path(path).resolve().parent)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"fabric: {path}: {error}") from error
    check_config(config, name=f"fabric: {path}")
    return config


def check_config(config: FabricConfig, *, name: str) -> None:
    """Raise :class:`InvalidInput` for what no chassis could be; ``name`` is what errors call the file."""
    names = [access.name for access in config.chassis]
    for access in config.chassis:
        if names.count(access.name) > 1:
            raise InvalidInput(f"{name}: chassis {access.name} is there twice")
        try:
            _check(access)
        except InvalidInput as error:
            raise InvalidInput(f"{name}: {error.message}", hint=error.hint) from error


def make_driver(access: ChassisAccess, *, clock: Clock) -> Driver:
    """Return the driver of one chassis; raise :class:`InvalidInput` for settings that don't go together.

    Nothing is sent yet; its credentials are read now.
    """
    _check(access)
    at = f"chassis {access.name}"
    transport = HttpTransport(access.name, access.url, pinned=access.certificate, authority=access.authority)
    if access.dialect is Dialect.H3:
        return H3Driver(access.name, transport, ports=access.ports, known=access.devices)
    return RedfishDriver(
        access.name,
        transport,
        clock=clock,
        credentials=read_credentials(access.credentials, what=at) if access.credentials else None,
        ports=access.ports,
        style=access.style,
        chassis_id=access.chassis_id,
        fabric_id=access.fabric_id,
        parallel=access.parallel,
    )


def _check(access: ChassisAccess) -> None:
    """Raise :class:`InvalidInput` for settings that can't be, as far as they tell without their files."""
    _check_names(access)
    at = f"chassis {access.name}"
    if not _is_url(access.url):
        raise InvalidInput(f"{at}: url {access.url!r}: not http://HOST:PORT or https://HOST:PORT")
    if not 1 <= access.parallel <= 64:
        raise InvalidInput(f"{at}: parallel: {access.parallel} is not from 1 to 64")
    if access.credentials and not access.url.startswith("https://"):
        raise InvalidInput(f"{at}: a password would be sent in clear text", hint="give an https:// url")
    if access.dialect is Dialect.H3 and (access.credentials or access.parallel != 1):
        raise InvalidInput(f"{at}: the h3 dialect has no authentication, and takes one request at a time")


def _check_names(access: ChassisAccess) -> None:
    """Refuse what the scheduler would end the session over, or ``fabric_ports`` (CHASSIS/PORT) could not name."""
    name = access.name
    if not 0 < len(name) <= MAX_NAME or not name.isprintable() or "/" in name:
        raise InvalidInput(f"chassis {name!r}: its name is not 1 to {MAX_NAME} printable characters without a slash")
    for port, node in access.ports.items():
        if not port or not (_is_name(port) and _is_name(node)):
            raise InvalidInput(
                f"chassis {name}: ports: {port!r} = {node!r}: not at most {MAX_NAME} printable characters each"
            )
    serials: dict[str, str] = {}
    for handle, known in access.devices.items():
        first = serials.setdefault(known.serial.casefold(), handle) if known.serial else handle
        if first != handle:
            # The reading would give one device twice, and be refused as the chassis's fault.
            raise InvalidInput(f"chassis {name}: devices: {first!r} and {handle!r} have the same serial {known.serial}")
        if not (_is_name(known.serial) and _is_name(known.model)):
            raise InvalidInput(
                f"chassis {name}: devices.{handle!r}: serial or model is not at most {MAX_NAME} printable characters"
            )
        if not (0 <= known.vendor_id <= MAX_PCI_ID and 0 <= known.device_id <= MAX_PCI_ID):
            raise InvalidInput(f"chassis {name}: devices.{handle!r}: vendor_id or device_id is not of 16 bits")


def _is_name(text: str) -> bool:
    return len(text) <= MAX_NAME and text.isprintable()


def _is_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        # The port is read when it is asked for.
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and "@" not in url
    except ValueError:
        return False


def read_credentials(path: str, *, what: str) -> Credentials:
    """Read user and password from a TOML file that is its owner's alone, this user's or root's.

    Raises :class:`NotPermitted` for one that others may read, and
    :class:`InvalidInput`; neither shows what is in it.
    """
    try:
        # Looked at after it is open: a name may lead elsewhere the next moment.  A pipe would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise InvalidInput(
            f"{what}: credentials {path}: {error.strerror}", hint=f"{_CREDENTIALS}, of mode 0600"
        ) from error
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise InvalidInput(f"{what}: credentials {path}: not a file")
        if status.st_uid not in (0, os.geteuid()):
            raise NotPermitted(
                f"{what}: credentials {path}: belongs to user id {status.st_uid}", hint="make it your own"
            )
        if status.st_mode & 0o077:
            raise NotPermitted(f"{what}: credentials {path}: others can read or write it", hint=f"chmod 600 {path}")
        text = file.read(MAX_CREDENTIALS_BYTES + 1)
    try:
        fields = tomllib.loads(text.decode()) if len(text) <= MAX_CREDENTIALS_BYTES else {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        # The parser's own words may quote the line that is wrong, and the password with it.
        fields = {}
    user, password = fields.get("user"), fields.get("password")
    if not isinstance(user, str) or not isinstance(password, str) or not user or fields.keys() != {"user", "password"}:
        raise InvalidInput(f"{what}: credentials {path}: not understood", hint=_CREDENTIALS)
    return Credentials(user, password)
