"""The metrics that nodes measure: one table of names, kinds and units, for agents, scheduler and people.

A *metric* is a quantity, a *series* one instance of it, told apart by the
values of the metric's labels.  Counters only grow; from those that name a
``rate`` a gauge is made, in units of the counter per second.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

from farbus.model.value import Value

KIB, MIB = 2**10, 2**20


class MetricKind(enum.StrEnum):
    """How a metric moves: as Prometheus names it."""

    GAUGE = "gauge"
    COUNTER = "counter"


class Metric(Value, frozen=True, kw_only=True):
    """One quantity.

    ``step`` is the resolution at which the scheduler is told of it, in the
    metric's unit; 0 keeps it on its node.  ``wraps_at`` is where a counter
    begins again by itself.  Prometheus reads it as ``exported``, in units that
    are ``scale`` of ours.
    """

    name: str
    help: str
    kind: MetricKind = MetricKind.GAUGE
    labels: tuple[str, ...] = ()
    step: float = 0.0
    rate: str = ""
    wraps_at: int = 2**64
    exported: str = ""
    scale: float = 1.0


class Series(NamedTuple):
    """One instance of a metric; ``labels`` are values in the order of the metric's labels."""

    metric: str
    labels: tuple[str, ...] = ()


Values = Mapping[Series, float]
"""What a collector found, and what is known of a node."""

FRACTION_STEP = 0.01
BYTE_RATE_STEP = 10_000.0
"""Below this many bytes a second a link is idle: what daemons say to each other."""

LINK = ("device",)
GPU = ("UUID",)
LEASE = ("lease",)
PATH = ("lease", "address")
DRIVE = ("drive",)
SESSION = ("lease", "pid", "client_pid", "program")


def _gauge(name: str, text: str, *labels: str, step: float = 0.0, exported: str = "", scale: float = 1.0) -> Metric:
    return Metric(
        name=name, help=text, labels=labels, step=step, exported=exported or f"farbus_{name}", scale=scale
    )  # fmt: skip


def _counter(
    name: str,
    text: str,
    *labels: str,
    step: float = 0.0,
    rate: str = "",
    wraps_at: int = 2**64,
    exported: str = "",
    scale: float = 1.0,
) -> Metric:
    return Metric(
        name=name,
        help=text,
        kind=MetricKind.COUNTER,
        labels=labels,
        step=step,
        rate=rate,
        wraps_at=wraps_at,
        exported=exported or f"farbus_{name}",
        scale=scale,
    )


def _pressure(resource: str, kind: str, text: str) -> tuple[Metric, Metric]:
    base = f"node_pressure_{resource}_{kind}"
    return (
        _counter(f"{base}_seconds_total", f"Time in which {text}.", rate=f"{base}_ratio"),
        _gauge(f"{base}_ratio", f"Share of the last interval in which {text}.", step=FRACTION_STEP),
    )


_HOST = (
    _counter("node_cpu_seconds_total", "Processor time by what it was spent on, over all processors.", "mode"),
    _gauge("node_cpu_busy_ratio", "Share of all processors that worked in the last interval.", step=FRACTION_STEP),
    _gauge("node_load1", "Processes that ran or waited to run, averaged over a minute.", step=0.1),
    _gauge("node_memory_total_bytes", "Memory of the node.", step=MIB),
    _gauge("node_memory_available_bytes", "Memory that programs could be given without swapping.", step=16 * MIB),
    *_pressure("cpu", "waiting", "some task waited for a processor"),
    *_pressure("memory", "waiting", "some task waited for memory"),
    *_pressure("memory", "stalled", "all tasks waited for memory"),
    *_pressure("io", "waiting", "some task waited for input or output"),
    *_pressure("io", "stalled", "all tasks waited for input or output"),
)

_NETWORK = (
    _gauge("node_network_up", "Whether the link is up.", *LINK, step=1.0),
    _gauge("node_network_speed_bytes", "Speed of the link in bytes a second; absent where unknown.", *LINK, step=1e6),
    *(
        metric
        for direction, word in (("receive", "received"), ("transmit", "sent"))
        for metric in (
            _counter(
                f"node_network_{direction}_bytes_total",
                f"Bytes {word} over the link.",
                *LINK,
                rate=f"node_network_{direction}_bytes_per_second",
            ),
            _gauge(
                f"node_network_{direction}_bytes_per_second",
                f"Bytes a second {word} over the link in the last interval.",
                *LINK,
                step=BYTE_RATE_STEP,
            ),
            _counter(f"node_network_{direction}_packets_total", f"Packets {word} over the link.", *LINK),
            _counter(f"node_network_{direction}_errs_total", f"Packets with errors, to be {word}.", *LINK),
            _counter(f"node_network_{direction}_drop_total", f"Packets dropped, to be {word}.", *LINK),
        )
    ),
)

_GPU = (
    _gauge(
        "gpu_busy_ratio", "Share of the last second in which kernels ran.", *GPU, step=FRACTION_STEP,
        exported="DCGM_FI_DEV_GPU_UTIL", scale=100.0,
    ),
    _gauge(
        "gpu_memory_busy_ratio", "Share of the last second in which device memory was read or written.", *GPU,
        exported="DCGM_FI_DEV_MEM_COPY_UTIL", scale=100.0,
    ),
    _gauge(
        "gpu_memory_used_bytes", "Device memory in use (exported in MiB).", *GPU, step=MIB,
        exported="DCGM_FI_DEV_FB_USED", scale=1 / MIB,
    ),
    _gauge(
        "gpu_memory_free_bytes", "Device memory that is free (exported in MiB).", *GPU,
        exported="DCGM_FI_DEV_FB_FREE", scale=1 / MIB,
    ),
    _gauge(
        "gpu_power_watts", "Power drawn by the board, in watts.", *GPU, step=2.0, exported="DCGM_FI_DEV_POWER_USAGE",
    ),
    _gauge(
        "gpu_temperature_celsius", "Temperature of the chip, in degrees Celsius.", *GPU, step=1.0,
        exported="DCGM_FI_DEV_GPU_TEMP",
    ),
    _gauge(
        "gpu_sm_clock_hertz", "Clock of the multiprocessors (exported in MHz).", *GPU, step=15e6,
        exported="DCGM_FI_DEV_SM_CLOCK", scale=1e-6,
    ),
    _gauge(
        "gpu_memory_clock_hertz", "Clock of the device memory (exported in MHz).", *GPU,
        exported="DCGM_FI_DEV_MEM_CLOCK", scale=1e-6,
    ),
    _counter(
        "gpu_energy_joules_total", "Energy drawn since the driver was loaded (exported in millijoules).", *GPU,
        exported="DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", scale=1e3,
    ),
    _counter(
        "gpu_ecc_corrected_errors_total", "Memory errors corrected since the driver was loaded.", *GPU, step=1.0,
        exported="DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
    ),
    _counter(
        "gpu_ecc_uncorrected_errors_total", "Memory errors that could not be corrected since the driver was loaded.",
        *GPU, step=1.0, exported="DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
    ),
    _counter(
        "gpu_pcie_replays_total", "Packets that had to be sent again over PCI Express.", *GPU, wraps_at=2**32,
        exported="DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
    ),
    _gauge(
        "gpu_last_xid", "Number of the last XID error that the driver told of.", *GPU, step=1.0,
        exported="DCGM_FI_DEV_XID_ERRORS",
    ),
    _counter("gpu_xid_errors_total", "XID errors since the agent watches, by their number.", *GPU, "xid"),
    _gauge(
        "gpu_pcie_receive_bytes_per_second", "Bytes a second from the host to the GPU; not looked at while idle.",
        *GPU, step=1e6,
    ),
    _gauge(
        "gpu_pcie_send_bytes_per_second", "Bytes a second from the GPU to the host; not looked at while idle.",
        *GPU, step=1e6,
    ),
    _gauge("gpu_processes", "Processes that compute on the GPU.", *GPU, step=1.0),
)  # fmt: skip


def _account(noun: str, labels: tuple[str, ...], step: float) -> tuple[Metric, ...]:
    """What is counted of a session, and summed over a lease's; only one of the two need travel."""
    return (
        _counter(
            f"{noun}_calls_total", "Calls of the driver that were served.", *labels, rate=f"{noun}_calls_per_second"
        ),
        _gauge(f"{noun}_calls_per_second", "Calls of the driver a second.", *labels, step=10.0 * step),
        _counter(
            f"{noun}_receive_bytes_total", "Bytes from programs.", *labels, rate=f"{noun}_receive_bytes_per_second"
        ),
        _gauge(
            f"{noun}_receive_bytes_per_second", "Bytes a second from programs.", *labels, step=BYTE_RATE_STEP * step
        ),
        _counter(f"{noun}_send_bytes_total", "Bytes to programs.", *labels, rate=f"{noun}_send_bytes_per_second"),
        _gauge(f"{noun}_send_bytes_per_second", "Bytes a second to programs.", *labels, step=BYTE_RATE_STEP * step),
        _counter(
            f"{noun}_busy_seconds_total",
            "Time in which a call was in work, waiting for the device included, however many there were.",
            *labels,
            rate=f"{noun}_busy_ratio",
        ),
        _gauge(
            f"{noun}_busy_ratio",
            "Share of time in which a call was in work, summed over the sessions.",
            *labels,
            step=FRACTION_STEP * step,
        ),
    )


_REMOTING = (
    _gauge(
        "lease_info", "Always 1: whose lease it is.", *LEASE, "job", "task", "user", "client_node", "route",
    ),
    _gauge("lease_sessions", "Programs that are connected.", *LEASE),
    _counter("lease_connections_total", "Programs that have connected.", *LEASE),
    *_account("lease", LEASE, 0.0),
    _gauge("session_memory_bytes", "Device memory of the session's server.", *SESSION, step=MIB),
    _gauge(
        "session_waiting_seconds",
        "For how long its server has had calls in work without finishing or taking any; absent below 5 s.",
        *SESSION,
        step=1.0,
    ),
    _gauge(
        "session_stopped", "Always 1: somebody has stopped its server (SIGSTOP); absent while it runs.",
        *SESSION, step=1.0,
    ),
    _counter(
        "session_uncopied_bytes_total",
        "Bytes sent to the program that the kernel has not copied (MSG_ZEROCOPY), in whole MiB; absent without any.",
        *SESSION,
    ),
    # Told to the scheduler under a name of its own: session_... has the labels of SESSION and no others, everywhere.
    _gauge(
        "transport_of_session", "Always 1: what carries its calls.", *SESSION, "transport",
        step=1.0, exported="farbus_session_info",
    ),
    *_account("session", SESSION, 1.0),
)  # fmt: skip


def _input_output(noun: str, what: str, labels: tuple[str, ...]) -> tuple[Metric, ...]:
    return tuple(
        metric
        for one, words in (("read", "read"), ("written", "written"))
        for metric in (
            _counter(
                f"{noun}_{one}_bytes_total", f"Bytes {words} {what}.", *labels, rate=f"{noun}_{one}_bytes_per_second"
            ),
            _gauge(f"{noun}_{one}_bytes_per_second", f"Bytes a second {words} {what}.", *labels, step=BYTE_RATE_STEP),
        )
    ) + tuple(
        metric
        for one in ("reads", "writes")
        for metric in (
            _counter(f"{noun}_{one}_total", f"Requests: {one} {what}.", *labels, rate=f"{noun}_{one}_per_second"),
            _gauge(f"{noun}_{one}_per_second", f"Requests a second: {one} {what}.", *labels, step=10.0),
        )
    )


_STORAGE = (
    *_input_output("storage_path", "over the path", PATH),
    _gauge("storage_path_info", "Always 1: the states of the path and of its ANA group.", *PATH, "state", "ana_state"),
    _gauge("storage_path_up", "Whether the path's controller is live.", *PATH, step=1.0),
    _gauge("storage_path_in_flight", "Requests on their way.", *PATH),
    _gauge(
        "storage_path_latency_seconds", "Time that a request took in the last interval; absent without any.", *PATH,
        step=0.0001,
    ),
    _counter("storage_path_reconnects_total", "Times that the path came back, as the agent saw.", *PATH, step=1.0),
    _counter(
        "storage_path_errors_total",
        "Entries of the error log of the path's controller, since it was connected; absent until it was read.", *PATH,
        step=1.0,
    ),
    *_input_output("storage_export", "through the device behind the export", LEASE),
    _gauge("storage_export_granted_bytes_per_second", "Bytes a second that the lease was granted, each way.", *LEASE),
    _counter(
        "storage_export_breaches_total", "Times that the lease began to use more than it was granted.", *LEASE,
        step=1.0,
    ),
    _gauge("drive_critical_warning", "Bits of the SMART log's Critical Warning.", *DRIVE, step=1.0),
    _gauge("drive_temperature_celsius", "Temperature of the drive.", *DRIVE, step=1.0),
    _gauge("drive_spare_ratio", "Spare capacity that is left.", *DRIVE, step=FRACTION_STEP),
    _gauge("drive_used_ratio", "Endurance that is used, of what the maker has stated.", *DRIVE, step=FRACTION_STEP),
    _counter("drive_media_errors_total", "Errors of the medium, over the drive's life.", *DRIVE, step=1.0),
    _counter("drive_error_log_entries_total", "Entries of the drive's error log, over its life.", *DRIVE),
    _counter("drive_unsafe_shutdowns_total", "Times that power was lost without a word.", *DRIVE),
    _counter("drive_read_bytes_total", "Bytes read over the drive's life.", *DRIVE),
    _counter("drive_written_bytes_total", "Bytes written over the drive's life.", *DRIVE),
)  # fmt: skip

METRICS: Mapping[str, Metric] = {metric.name: metric for metric in (*_HOST, *_NETWORK, *_GPU, *_REMOTING, *_STORAGE)}
"""All metrics by name; whoever measures something else adds it here."""


def series(metric: str, *labels: object) -> Series:
    """Return one series; ``labels`` are given in the metric's order."""
    assert len(labels) == len(METRICS[metric].labels), f"{metric} has the labels {METRICS[metric].labels}"
    return Series(metric, tuple(str(label) for label in labels))
