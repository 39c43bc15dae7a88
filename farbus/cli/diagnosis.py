"""The checks of ``farbus doctor``: what is wrong with this machine, and what to do about it."""

from __future__ import annotations

import datetime
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import farbus
from farbus.api.authority import Credentials
from farbus.cli.connection import Target, ask, find_credentials, find_target
from farbus.cli.decoding import convert_fields
from farbus.cli.fabric_diagnosis import examine_fabric
from farbus.cli.findings import Finding, Verdict
from farbus.cli.node_settings import AGENT_SETTINGS, NodeSettings, node_settings
from farbus.cli.pci_diagnosis import examine_pci
from farbus.cli.rdma_diagnosis import examine_rdma
from farbus.cli.runtime import find_running_cluster
from farbus.cli.settings_diagnosis import examine_settings
from farbus.cli.storage_diagnosis import examine_storage
from farbus.cli.tls_diagnosis import examine_tls
from farbus.cli.toolchain import find_toolchain
from farbus.errors import FarbusError
from farbus.linux.diagnosis import FaultServing, KernelFacts, KernelFactsReader, closed_directory
from farbus.model.node import Node, by_remoting_tls, describe_remoting_tls
from farbus.model.quantity import format_bytes
from farbus.model.states import NodeState
from farbus.remoting.paths import CURE, native_parts

WARN_DAYS = 30
"""A certificate that has fewer days left is worth a warning."""

OWN_CERTIFICATES = ("/etc/farbus/node", "/etc/farbus/scheduler")
"""Where the daemons of this machine have theirs, if it has any."""

LEAST_SHARED_MEMORY = 16 * 2**20

OLDEST_NVIDIA_DRIVER = 550
"""The branch of CUDA 12.4 (its release notes, table of drivers), the first that tells the parameters of a kernel
(cuKernelGetParamInfo), without which none is launched for a program elsewhere."""

LATER_MODULES = {
    "nvme-tcp": "use NVMe drives of other nodes over TCP",
    "nvmet-tcp": "offer NVMe drives to other nodes over TCP",
    "nvme-rdma": "use NVMe drives of other nodes over RDMA",
    "pciehp": "PCIe hot-plug",
}


def examine(*, config: str = "", socket: str = "", server: str = "", credentials: str = "") -> Iterator[Finding]:
    """Yield the findings one by one, those that need nothing first.

    ``config`` is the file of the agent's settings, where it is not the one that services have.  Raises
    :class:`farbus.errors.NotFound` and :class:`farbus.errors.InvalidInput` for one that can't be read.
    """
    settings = node_settings(config, must_exist=True) if config else _settings()
    yield _python()
    if os.geteuid() == 0:
        yield reachable_by_others(
            {"interpreter": sys.executable, "Python": sys.base_prefix, "farbus": str(Path(farbus.__file__).parent)}
        )
    yield from _native_parts()
    yield _nvcc()
    facts = KernelFactsReader().read()
    yield _shared_memory(facts.shared_memory_bytes)
    yield _nvidia_driver(facts.nvidia_driver)
    yield _cgroups(facts.cgroup_version, facts.cgroup_writable)
    yield _managed_memory(facts)
    yield from _modules()
    said = list(examine_settings(config))
    yield from said
    if isinstance(settings, FarbusError) and not said:
        yield Finding(check="settings", verdict=Verdict.WARNING, found=settings.message, cure=settings.hint)
    yield from examine_pci()
    yield from _as_set(settings)
    yield from _own_certificates(settings, source=config or AGENT_SETTINGS)
    yield from _cluster(socket, server, credentials)


def _ok(check: str, found: str) -> Finding:
    return Finding(check=check, verdict=Verdict.OK, found=found)


def _note(check: str, found: str, cure: str = "") -> Finding:
    return Finding(check=check, verdict=Verdict.NOTE, found=found, cure=cure)


def _broken(check: str, error: FarbusError) -> Finding:
    return Finding(check=check, verdict=Verdict.BROKEN, found=error.message, cure=error.hint)


def _python() -> Finding:
    # Older versions fail at the first import: a check of 3.11 could not run on them.
    version = ".".join(map(str, sys.version_info[:3]))
    return _ok("python", f"version {version}, farbus {farbus.__version__}")


def reachable_by_others(places: Mapping[str, str]) -> Finding:
    """Look whether users other than root get to ``places``, paths by what they are.

    Where they don't, they can't run the command; and what an agent does as them ends at once: to bring files of
    their jobs, or to serve GPUs as a user of its own (``remoting_user``).
    """
    for what, place in places.items():
        if (closed := closed_directory(place)) is not None:
            real = os.path.realpath(place)
            where = place if place == real else f"{place}, really {real}"
            return Finding(
                check="other users",
                verdict=Verdict.WARNING,
                found=f"they may not enter {closed}, where the {what} is ({where}): farbus is root's alone here",
                cure="install farbus, and the Python that it uses, where all may go, for example in /opt/farbus",
            )
    return _ok("other users", "they may run this Python and this farbus")


def _native_parts() -> Iterator[Finding]:
    found = native_parts()
    missing = [what for what, there in found.items() if not there]
    if missing:
        yield Finding(check="native parts", verdict=Verdict.BROKEN, found=f"not built: {', '.join(missing)}", cure=CURE)
    else:
        yield _ok("native parts", f"{', '.join(found)} are built")


def _nvcc() -> Finding:
    try:
        toolchain = find_toolchain()
    except FarbusError as error:
        return Finding(
            check="nvcc", verdict=Verdict.WARNING, found=f"{error.message}: CUDA programs can't be compiled here",
            cure=error.hint,
        )  # fmt: skip
    return _ok("nvcc", f"{toolchain.nvcc}, version {toolchain.version}")


def _nvidia_driver(version: str) -> Finding:
    if not version:
        return _note("nvidia driver", "none: this node has no NVIDIA GPU of its own", "software GPUs need none")
    branch = version.partition(".")[0]
    if branch.isdecimal() and int(branch) < OLDEST_NVIDIA_DRIVER:
        return Finding(
            check="nvidia driver",
            verdict=Verdict.WARNING,
            found=f"version {version}: programs of other nodes can't launch kernels on these GPUs",
            cure=f"install branch {OLDEST_NVIDIA_DRIVER} (CUDA 12.4) or newer",
        )
    return _ok("nvidia driver", f"version {version}")


def _shared_memory(free_bytes: int) -> Finding:
    if not free_bytes:
        return Finding(
            check="shared memory",
            verdict=Verdict.WARNING,
            found="none in /dev/shm that this user may write: software GPUs keep their accounts there",
            cure="make room, or mount it, with mode 1777, as systems do",
        )
    if free_bytes < LEAST_SHARED_MEMORY:
        return Finding(
            check="shared memory",
            verdict=Verdict.WARNING,
            found=f"{format_bytes(free_bytes)} in /dev/shm: software GPUs keep their accounts there",
            cure="make room, or mount it larger (docker run --shm-size)",
        )
    return _ok("shared memory", f"{format_bytes(free_bytes)} free")


def _cgroups(version: int, writable: bool) -> Finding:
    if version == 2 and writable:
        return _ok("cgroups", "version 2, writable")
    found = {2: "version 2, read-only for this user", 1: "version 1"}.get(version, "none")
    return _note(
        "cgroups", f"{found}: tasks get no cgroup of their own", "run the agent as root under cgroup version 2"
    )


def _managed_memory(facts: KernelFacts) -> Finding:
    """Say how programs started here get cudaMallocManaged's memory from a remote GPU (docs/wire.md)."""
    check = "managed memory"
    if facts.faults is FaultServing.SERVED:
        return _ok(check, f"paging: fetched when it is touched (userfaultfd, by {facts.faults_by})")
    copies = "copies: all of it is fetched at each wait, and a page touched while the GPU works ends the program"
    if facts.faults is FaultServing.NOT_THERE:
        return _note(
            check, f"{copies}; the kernel has no userfaultfd",
            "right, but slow in loops; to change it, a kernel with CONFIG_USERFAULTFD",
        )  # fmt: skip
    return _note(
        check, f"{copies}; this user may not use userfaultfd",
        "right, but slow in loops; to change it, sysctl vm.unprivileged_userfaultfd=1 or open /dev/userfaultfd to it",
    )  # fmt: skip


def _modules() -> Iterator[Finding]:
    reader = KernelFactsReader()
    there = [name for name in LATER_MODULES if reader.has_module(name)]
    missing = [f"{name} ({purpose})" for name, purpose in LATER_MODULES.items() if name not in there]
    if there:
        yield _ok("kernel modules", ", ".join(there))
    if missing:
        yield _note("kernel modules", f"not there: {', '.join(missing)}", "not needed for GPUs by remoting")


def _settings() -> NodeSettings | FarbusError:
    """Return what this machine's agent is set to, read once for all checks; the error where its file can't be read."""
    try:
        return node_settings()
    except FarbusError as error:
        return error


def _as_set(settings: NodeSettings | FarbusError) -> Iterator[Finding]:
    """Check what the agent is set to do: of one whose settings can't be read, what any node may need."""
    if isinstance(settings, FarbusError):
        yield from examine_storage(NodeSettings())
        return
    yield from examine_fabric(settings)
    yield from examine_storage(settings)
    yield from examine_tls(settings)
    yield from examine_rdma(settings)


def _cluster(socket: str, server: str, credentials: str) -> Iterator[Finding]:
    try:
        target = find_target(socket=socket, server=server, credentials=credentials)
    except FarbusError as error:
        if socket or server:
            yield _broken("cluster", error)
        else:
            yield _note("cluster", "none runs here", "start one with farbus up, or farbus agent")
        return
    if target.server or find_running_cluster() is not None:
        yield from _certificate(target)
    yield from _reach(target)


def _certificate(target: Target) -> Iterator[Finding]:
    running = find_running_cluster()
    directory = target.credentials or (running.credentials if running else "")
    if directory:
        yield from _certificate_in(directory)


def _own_certificates(settings: NodeSettings | FarbusError, *, source: str) -> Iterator[Finding]:
    for directory in OWN_CERTIFICATES:
        if _may_read(directory) and any(Path(directory).glob("*.crt")):
            yield from _certificate_in(directory)
    named = "" if isinstance(settings, FarbusError) else settings.credentials
    if isinstance(named, str):
        if named and named.rstrip("/") not in OWN_CERTIFICATES and _may_read(named):
            yield from _certificate_in(named)
        return
    try:
        files = convert_fields(named, Credentials, name=f"{source}: credentials")
    except FarbusError as error:
        yield _broken("certificate", error)
        return
    directory = os.path.dirname(files.certificate)
    if directory not in OWN_CERTIFICATES and _may_read(os.path.dirname(files.key)):
        yield from _certificate_of(lambda: files, directory)


def _may_read(directory: str) -> bool:
    # Root sees what is missing; to others a directory that is not theirs may be there or not.
    return os.geteuid() == 0 or os.access(directory or ".", os.R_OK | os.X_OK)


def _certificate_in(directory: str) -> Iterator[Finding]:
    yield from _certificate_of(lambda: find_credentials(directory), directory)


def _certificate_of(find: Callable[[], Credentials], directory: str) -> Iterator[Finding]:
    try:
        files = find()
        identity, expires_at = files.identity(), files.expires_at()
    except FarbusError as error:
        yield _broken("certificate", error)
        return
    left = (expires_at - datetime.datetime.now(datetime.UTC)).days
    found = f"{identity.role} {identity.name}, valid for {left} more days"
    if left < WARN_DAYS:
        yield Finding(check="certificate", verdict=Verdict.WARNING, found=found, cure=f"farbus ca renew {directory}")
    else:
        yield _ok("certificate", found)


def _reach(target: Target) -> Iterator[Finding]:
    try:
        info = ask(target, lambda client: client.cluster_info())
    except FarbusError as error:
        yield _broken("scheduler" if target.server else "agent", error)
        return
    if target.socket:
        yield _ok("agent", f"{target.name} answers: node {info.node}, version {info.agent_version}")
    if info.scheduler_error:
        yield Finding(
            check="scheduler",
            verdict=Verdict.BROKEN,
            found=info.scheduler_error,
            cure="start it, or correct the agent's --scheduler",
        )
        return
    yield _ok(
        "scheduler",
        f"version {info.scheduler_version}, {info.nodes} nodes, "
        f"{info.jobs_running} jobs running, {info.jobs_queued} waiting",
    )
    try:
        statuses = ask(target, lambda client: client.list_nodes())
    except FarbusError as error:
        yield _broken("scheduler", error)
        return
    yield from encrypted_alike(status.node for status in statuses if status.state is not NodeState.LOST)


def encrypted_alike(nodes: Iterable[Node]) -> Iterator[Finding]:
    """Yield a warning where nodes differ in ``remoting_tls``: their programs and GPUs refuse each other."""
    settings = by_remoting_tls(nodes)
    if len(settings) > 1:
        yield Finding(
            check="encryption",
            verdict=Verdict.WARNING,
            found=describe_remoting_tls(settings),
            cure="set it alike in agent.toml of all nodes, and restart their agents",
        )
