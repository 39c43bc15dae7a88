"""The picture that ``farbus top`` shows: nodes, GPUs and remoting sessions at work, in 80 columns, or more if asked."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from farbus.cli.listing import printable
from farbus.cli.tables import format_age
from farbus.model.node import name_some
from farbus.model.quantity import format_cpu
from farbus.model.states import DeviceState, NodeState
from farbus.model.telemetry import ClusterTelemetry, GpuTelemetry, NodeTelemetry, SessionTelemetry

if TYPE_CHECKING:
    from rich.console import Group
    from rich.text import Text

R = TypeVar("R")

UUID_SHOWN = 12
"""Characters of a GPU's identity that are shown, "GPU-" and eight digits; more where that names two.

What stands behind a slash, the number of a share, is shown whole.
"""


class Sort(enum.StrEnum):
    """What comes first."""

    NAME = "name"
    BUSY = "busy"
    MEMORY = "memory"
    TRAFFIC = "traffic"


SORT_KEYS = {each.value[0]: each for each in Sort}
"""The key that chooses each order: its first letter."""

UNKNOWN = "-"


def short_bytes(count: float | None) -> str:
    """Write bytes in at most five characters: ``0``, ``12K``, ``1.5G``; powers of 1024."""
    if count is None:
        return UNKNOWN
    size = max(0.0, count)
    for unit in ("", "K", "M", "G", "T"):
        if size < 999.5:
            return f"{size:.1f}{unit}" if unit and size < 9.95 else f"{size:.0f}{unit}"
        size /= 1024
    return f"{size:.0f}P"


def short_count(count: float) -> str:
    """Write a number in at most five characters: ``850``, ``12k``, ``1.5M``; powers of 1000."""
    for unit in ("", "k", "M", "G"):
        if count < 999.5:
            return f"{count:.1f}{unit}" if unit and count < 9.95 else f"{count:.0f}{unit}"
        count /= 1000
    return f"{count:.0f}T"


def percent(fraction: float | None) -> str:
    """Write a fraction as per cent in at most five characters: ``97%``, ``1.3k%``."""
    return UNKNOWN if fraction is None else f"{short_count(100 * fraction)}%"


def _rate(value: float | None, unit: str = "") -> str:
    return UNKNOWN if value is None else f"{value:.0f}{unit}"


class _Column(Generic[R]):
    """One column; of its width only what a title and ``width`` characters need."""

    def __init__(self, title: str, width: int, cell: Callable[[R], str], *, right: bool = False) -> None:
        self.title = title
        self.width = max(width, len(title))
        self._cell = cell
        self._right = right

    def text(self, row: R) -> str:
        """Return the cell, cut to the width."""
        return self._fit(printable(self._cell(row)) or UNKNOWN)

    def head(self) -> str:
        """Return the title."""
        return self._fit(self.title)

    def _fit(self, text: str) -> str:
        if len(text) > self.width:
            text = text[: self.width - 1] + "…"
        return text.rjust(self.width) if self._right else text.ljust(self.width)


def _network(node: NodeTelemetry) -> tuple[float | None, float | None]:
    if not node.links:
        return None, None
    return sum(link.receive_bytes_per_s for link in node.links), sum(link.send_bytes_per_s for link in node.links)


def _memory(node: NodeTelemetry) -> str:
    return f"{short_bytes(node.memory_used_bytes)} of {short_bytes(node.memory_bytes)}"


def _pressures(node: NodeTelemetry) -> str:
    return " ".join(
        _rate(None if pressure is None else 100 * pressure)
        for pressure in (node.cpu_pressure, node.memory_pressure, node.io_pressure)
    )


def _busy(node: NodeTelemetry) -> str:
    return f"{percent(node.cpu_busy_fraction)} of {format_cpu(node.cpu_milli)}"


_NODES: tuple[_Column[NodeTelemetry], ...] = (
    _Column("NODE", 16, lambda node: node.node),
    _Column("CPU", 11, _busy, right=True),
    _Column("MEMORY", 13, _memory, right=True),
    # Share of time in which some task waited, in per cent.
    _Column("WAIT cpu/mem/io", 15, _pressures, right=True),
    _Column("IN/s", 5, lambda node: short_bytes(_network(node)[0]), right=True),
    _Column("OUT/s", 5, lambda node: short_bytes(_network(node)[1]), right=True),
    _Column("SEEN", 6, lambda node: format_age(node.seen_s), right=True),
)


class _Gpu:
    """A GPU with the node that has it."""

    def __init__(self, node: NodeTelemetry, gpu: GpuTelemetry, name: str) -> None:
        self.node = node
        self.gpu = gpu
        self.name = name


def _is_wedged(row: _Gpu) -> bool:
    return row.gpu.state == DeviceState.WEDGED


def _user(gpu: GpuTelemetry) -> str:
    return f"{gpu.user} on {gpu.client_node}" if gpu.client_node else gpu.user or gpu.state


def _gpu_columns(names: Mapping[str, str]) -> tuple[_Column[_Gpu], ...]:
    return (
        _Column("GPU", max([UUID_SHOWN, *map(len, names.values())]), lambda row: row.name),
        _Column("NODE", 10, lambda row: row.node.node),
        _Column("BUSY", 4, lambda row: percent(row.gpu.busy_fraction), right=True),
        _Column(
            "MEMORY",
            13,
            lambda row: f"{short_bytes(row.gpu.memory_used_bytes)} of {short_bytes(row.gpu.memory_bytes)}",
            right=True,
        ),
        _Column("W", 4, lambda row: _rate(row.gpu.power_watts), right=True),
        _Column("°C", 3, lambda row: _rate(row.gpu.temperature_celsius), right=True),
        _Column("JOB", 7, lambda row: row.gpu.job),
        _Column("USED BY", 18, lambda row: _user(row.gpu)),
    )


class _Session:
    """A session with the node whose devices it uses."""

    def __init__(self, node: NodeTelemetry, session: SessionTelemetry) -> None:
        self.node = node
        self.session = session


def _program(row: _Session) -> str:
    return row.session.program or f"pid {row.session.client_pid}"


_SESSIONS: tuple[_Column[_Session], ...] = (
    _Column("PROGRAM", 12, _program),
    _Column("JOB", 7, lambda row: row.session.job),
    _Column("USER", 8, lambda row: row.session.user),
    _Column("FROM", 9, lambda row: row.session.client_node),
    _Column("ON", 9, lambda row: row.node.node),
    _Column("VIA", 4, lambda row: row.session.transport),
    _Column("CALLS/s", 7, lambda row: short_count(row.session.calls_per_s), right=True),
    _Column("IN/s", 5, lambda row: short_bytes(row.session.receive_bytes_per_s), right=True),
    _Column("OUT/s", 5, lambda row: short_bytes(row.session.send_bytes_per_s), right=True),
    # An older server sums what its threads wait: 100% is no limit then.
    _Column("BUSY", 5, lambda row: percent(row.session.busy_fraction), right=True),
)

_SESSIONS_WIDE: tuple[_Column[_Session], ...] = (
    *_SESSIONS,
    _Column("MEMORY", 5, lambda row: short_bytes(row.session.memory_bytes), right=True),
    _Column("WAITS", 6, lambda row: format_age(row.session.waiting_s) if row.session.waiting_s else "", right=True),
    _Column("SERVER", 7, lambda row: str(row.session.server_pid or ""), right=True),
    _Column("PID", 7, lambda row: str(row.session.client_pid or ""), right=True),
    _Column("LEASE", 8, lambda row: row.session.lease),
)
"""The process ids of the server, on the node of the device, and of the program, on its own."""

HANGS_S = 60.0
"""A server that has had calls in work for so long, and finished or taken none, has a line of its own."""


def _says_hangs(row: _Session) -> str:
    session = row.session
    return (
        f"{row.node.node}: server {session.server_pid} of {_program(row)} "
        f"has not come back from a call for {format_age(session.waiting_s)}"
    )


def _says_stopped(row: _Session) -> str:
    return f"{row.node.node}: server {row.session.server_pid} of {_program(row)} is stopped; kill -CONT lets it go on"


def _node_rank(node: NodeTelemetry, sort: Sort) -> float:
    match sort:
        case Sort.BUSY:
            return node.cpu_busy_fraction or 0.0
        case Sort.MEMORY:
            return (node.memory_used_bytes or 0) / max(1, node.memory_bytes)
        case Sort.TRAFFIC:
            return sum(rate or 0.0 for rate in _network(node))
        case Sort.NAME:
            return 0.0


def _gpu_rank(row: _Gpu, sort: Sort) -> float:
    match sort:
        case Sort.BUSY:
            return row.gpu.busy_fraction or 0.0
        case Sort.MEMORY:
            return float(row.gpu.memory_used_bytes or 0)
        case Sort.TRAFFIC:
            return (row.gpu.pcie_receive_bytes_per_s or 0.0) + (row.gpu.pcie_send_bytes_per_s or 0.0)
        case Sort.NAME:
            return 0.0


def _session_rank(row: _Session, sort: Sort) -> float:
    match sort:
        case Sort.BUSY:
            return row.session.busy_fraction
        case Sort.MEMORY:
            return float(row.session.memory_bytes or 0)
        case Sort.TRAFFIC:
            return row.session.receive_bytes_per_s + row.session.send_bytes_per_s
        case Sort.NAME:
            return 0.0


def short_names(identities: Sequence[str]) -> dict[str, str]:
    """Return for each identity its first characters, as few as tell all apart but at least :data:`UUID_SHOWN`.

    The shares of a GPU keep their numbers: ``GPU-8f2d6c1e/1``.
    """
    whole = {each: each.partition("/") for each in identities}
    length = UUID_SHOWN
    longest = max((len(uuid) for uuid, _, _ in whole.values()), default=0)
    while length < longest and len({(uuid[:length], share) for uuid, _, share in whole.values()}) < len(whole):
        length += 1
    return {each: uuid[:length] + slash + share for each, (uuid, slash, share) in whole.items()}


def picture(
    telemetry: ClusterTelemetry,
    *,
    sort: Sort,
    height: int | None = None,
    error: str = "",
    keys: bool = False,
    wide: bool = False,
) -> Group:
    """Return what is shown: at most ``height`` lines, as many as there are when it is None.

    ``error`` says why the figures are old; ``keys`` adds a line that says what can be pressed; ``wide`` adds columns of
    sessions beyond the 80.
    """
    # Rich takes its time to load, and other commands do without it.
    from rich.console import Group  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    nodes = sorted(telemetry.nodes, key=lambda node: (-_node_rank(node, sort), node.node))
    names = short_names([gpu.device for node in nodes for gpu in node.gpus])
    gpus = sorted(
        (_Gpu(node, gpu, names[gpu.device]) for node in nodes for gpu in node.gpus),
        key=lambda row: (-_gpu_rank(row, sort), row.node.node, row.gpu.device),
    )
    sessions = sorted(
        (_Session(node, session) for node in nodes for session in node.sessions),
        key=lambda row: (-_session_rank(row, sort), row.session.job, row.session.client_pid),
    )
    leased = sum(bool(row.gpu.user) for row in gpus)
    lost = sum(node.state is NodeState.LOST for node in nodes)
    title = f"{time.strftime('%H:%M:%S')}  {_plural(len(nodes), 'node')}" + (f" ({lost} lost)" if lost else "")
    title += f", {_plural(len(gpus), 'GPU')} ({leased} in use), {_plural(len(sessions), 'session')}, by {sort}"
    head = [Text(title, style="bold", no_wrap=True, overflow="ellipsis")]
    if error:
        head.append(Text(printable(error), style="red", no_wrap=True, overflow="ellipsis"))
    told = [
        f"{state}: {name_some(sorted(found))}"
        for state in (NodeState.LOST, NodeState.CORDONED)
        if (found := [node.node for node in nodes if node.state is state])
    ]
    told += [
        f"{row.node.node}: {row.name} is wedged; farbus devices -o wide says why" for row in gpus if _is_wedged(row)
    ]
    told += [_says_stopped(row) for row in sessions if row.session.stopped]
    told += [_says_hangs(row) for row in sessions if row.session.waiting_s >= HANGS_S]
    told += [f"{node.node}: {state.name} telemetry is old: {state.reason}" for node in nodes for state in node.stale]
    troubles = [Text(printable(line), style="yellow", no_wrap=True, overflow="ellipsis") for line in told]
    sections: list[list[Text]] = [
        _section(_NODES, nodes, lambda node: node.state is NodeState.LOST, Text),
        _section(_gpu_columns(names), gpus, lambda row: row.node.state is NodeState.LOST, Text),
        _section(_SESSIONS_WIDE if wide else _SESSIONS, sessions, lambda row: row.node.state is NodeState.LOST, Text),
        troubles,
    ]
    sections = [section for section in sections if section]
    foot = []
    if keys:
        orders = "  ".join(f"{key} by {each}" for key, each in SORT_KEYS.items())
        foot = [Text(f"q quit  {orders}", style="dim", no_wrap=True, overflow="ellipsis")]
    if height is not None:
        sections = _cut(sections, height - len(head) - len(foot) - len(sections), Text)
    lines = list(head)
    for section in sections:
        lines += [Text(""), *section]
    return Group(*lines, *foot)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _section(
    columns: Sequence[_Column[R]], rows: Sequence[R], is_grey: Callable[[R], bool], text: type[Text]
) -> list[Text]:
    if not rows:
        return []
    lines = [text(" ".join(column.head() for column in columns).rstrip(), style="bold")]
    for row in rows:
        lines.append(
            text(" ".join(column.text(row) for column in columns).rstrip(), style="dim" if is_grey(row) else "")
        )
    for line in lines:
        line.no_wrap, line.overflow = True, "crop"
    return lines


def _cut(sections: list[list[Text]], room: int, text: type[Text]) -> list[list[Text]]:
    """Shorten the longest sections until all fit into ``room`` lines; what is left out is counted."""
    kept = [len(section) for section in sections]
    while sum(kept) > max(room, 3 * len(kept)):
        kept[kept.index(max(kept))] -= 1
    cut = []
    for section, count in zip(sections, kept, strict=True):
        if count < len(section):
            more = len(section) - count + 1
            section = [*section[: count - 1], text(f"and {more} more", style="dim")]  # noqa: PLW2901
        cut.append(section)
    return cut
