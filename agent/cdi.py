"""Remote GPUs in containers: a specification for each task by which container engines put the shim into one.

The Container Device Interface (github.com/cncf-tags/container-device-interface, SPEC.md 0.3.0) lets an engine (podman,
docker, containerd, CRI-O) look up a device by name in the JSON files of ``/etc/cdi`` and ``/run/cdi``, and edit the
container as the file says.  A task with remote GPUs has its device's name in FARBUS_CDI_DEVICE.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

import msgspec

KIND = "farbus.io/gpu"

VARIABLE = "FARBUS_CDI_DEVICE"
"""In a task's environment: what it gives its container engine as ``--device``."""

PREFIX = "farbus."

_VERSION = "0.3.0"
_INSIDE = PurePosixPath("/run/farbus")
"""Where a container finds the session file, supervisors' sockets beside it, and the shim's directory."""

PRELOADED = ("libcuda.preload.so", "libnvidia-ml.preload.so")
"""Libraries in the shim's directory that lead to libcuda.so.1 and libnvidia-ml.so.1, and carry their names.

Programs open those two by name, and find what is loaded already.  They are not preloaded themselves: they need glibc,
and where an image has another C library, as Alpine's have musl, its programs would not start
(docs/decisions/0030-preloading-without-a-c-library.md).
"""


def device_name(job: str, task: str) -> str:
    """Return the qualified name of a task's remote GPUs."""
    return f"{KIND}={job}.{task}"


def specification(
    name: str,
    environment: Mapping[str, str],
    *,
    session: Path,
    shim: Path,
    sockets: Sequence[Path] = (),
    nodes: Sequence[Path] = (),
) -> bytes:
    """Return the file that makes ``name`` a device: what is in ``environment``, with the paths of a container.

    ``sockets`` are those of this machine's supervisors that serve the task, and no others.  ``nodes`` are device files
    that are there: engines start no container that is to have others.
    An engine puts these variables in place of the image's own.  Images have an LD_LIBRARY_PATH that their programs
    need, so it is left to them: what the shim's directory is searched for is preloaded.
    """
    moved = {str(session): str(_INSIDE / "session"), str(shim): str(_INSIDE / "lib")}

    def inside(value: str) -> str:
        for outside, path in moved.items():
            if value == outside or value.startswith(f"{outside}/"):
                return path + value.removeprefix(outside)
        return value

    options = ["ro", "nosuid", "nodev", "bind"]
    mounts = moved | {str(path): str(_INSIDE / path.name) for path in sockets}
    variables = {key: inside(value) for key, value in environment.items() if key != "LD_LIBRARY_PATH"}
    variables["LD_PRELOAD"] = ":".join(str(_INSIDE / "lib" / library) for library in PRELOADED)
    edits: dict[str, object] = {
        "env": [f"{key}={value}" for key, value in sorted(variables.items())],
        "mounts": [
            {"hostPath": outside, "containerPath": path, "options": options} for outside, path in mounts.items()
        ],
    }
    if nodes:
        edits["deviceNodes"] = [{"path": str(path)} for path in nodes]
    device = {"name": name.partition("=")[2], "containerEdits": edits}
    content = {"cdiVersion": _VERSION, "kind": KIND, "devices": [device]}
    return msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"
