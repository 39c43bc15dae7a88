"""``farbus softgpu``: the software GPU itself, without a cluster."""

from __future__ import annotations

import os
import signal
from typing import Annotated

import typer

from farbus.cli.options import ProgramCommand, command_app, examples
from farbus.cli.program import find_program, merge_environment
from farbus.errors import InvalidInput
from farbus.linux.children import become
from farbus.model.quantity import format_bytes, parse_bytes
from farbus.remoting import paths

app = command_app()

# What native/softgpu/driver/board_options.c takes.
CAPABILITIES = ("7.5", "8.0", "8.6", "8.7", "8.9", "9.0", "10.0", "10.3", "11.0", "12.0", "12.1", "13.0")
MAX_COUNT = 16
MAX_MULTIPROCESSORS = 256
MIN_MEMORY_BYTES = 16 << 20
MAX_MEMORY_BYTES = 1 << 40

SETTINGS = "FARBUS_SOFTGPU"
NODE = "FARBUS_SOFTGPU_NODE"


@app.callback(epilog=examples("farbus softgpu run ./program"))
def softgpu() -> None:
    """Use the software GPU: CUDA programs on the processor, for development and tests."""


@app.command(
    cls=ProgramCommand,
    epilog=examples(
        "farbus softgpu run ./program                     one GPU with 4 GiB",
        "farbus softgpu run --gpus 2 --cc 8.0 ./program -n 5",
        "farbus softgpu run --memory 512MiB ./program     when memory runs out",
        "farbus softgpu run --strict ./program            find races, bad accesses",
        "farbus softgpu run --node mine ./program         share the devices of a name",
        "",
        "It becomes the program: its exit code, its signals, its output. 126 when the program can't be executed, "
        "127 when there is none of that name. FARBUS_SOFTGPU (docs/softgpu.md) says what the options leave open.",
    ),
)
def run(
    program: Annotated[list[str], typer.Argument(metavar="PROGRAM", help="The program and its arguments.")],
    gpus: Annotated[
        int | None,
        typer.Option("--gpus", metavar="N", min=1, max=MAX_COUNT, help="Software GPUs that it sees.  [default: 1]"),
    ] = None,
    capability: Annotated[
        str, typer.Option("--cc", metavar="X.Y", help="Their compute capability.  [default: 9.0]", show_default=False)
    ] = "",
    memory: Annotated[
        str,
        typer.Option("--memory", metavar="SIZE", help="Memory of each, enforced.  [default: 4GiB]", show_default=False),
    ] = "",
    multiprocessors: Annotated[
        int | None,
        typer.Option(
            "--sms", metavar="N", min=1, max=MAX_MULTIPROCESSORS, help="Multiprocessors of each.  [default: 16]"
        ),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Look for mistakes; one thread, and much slower.")] = False,
    node: Annotated[
        str,
        typer.Option(
            "--node", metavar="NAME", help="Share the devices of this name.  [default: its own]", show_default=False
        ),
    ] = "",
) -> None:
    """Run a CUDA program here on the software GPU, without a cluster.

    The program runs unmodified, also one that nvcc made with its default
    options, and sees no other GPU.
    """
    chosen = {}
    if gpus is not None:
        chosen["count"] = str(gpus)
    if capability:
        chosen["cc"] = check_capability(capability)
    if memory:
        chosen["mem"] = check_memory(memory)
    if multiprocessors is not None:
        chosen["sms"] = str(multiprocessors)
    if strict:
        chosen["strict"] = "1"
    path = find_program(program[0])
    library = paths.preloadable(paths.software_gpu_library())
    needed = {
        # Preloaded as well: an rpath of the program comes before LD_LIBRARY_PATH.
        "LD_LIBRARY_PATH": str(library.parent),
        "LD_PRELOAD": str(library),
        SETTINGS: merge_settings(os.environ.get(SETTINGS, ""), chosen),
        # Its children are on the same node, and nobody else is.
        NODE: node or os.environ.get(NODE) or f"softgpu-run-{os.getuid()}-{os.getpid()}",
    }
    # Python ignores these, and what is ignored stays so in the program.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    become([path, *program[1:]], environment=merge_environment(os.environ, needed))


def check_capability(text: str) -> str:
    """Return ``text``; raise :class:`InvalidInput` unless the software GPU can have that compute capability."""
    if text not in CAPABILITIES:
        raise InvalidInput(f"--cc {text}: no compute capability it can have", hint=f"choose {', '.join(CAPABILITIES)}")
    return text


def check_memory(text: str) -> str:
    """Return a size as the software GPU's setting wants it; raise :class:`InvalidInput` outside of its limits."""
    size = parse_bytes(text, what="--memory")
    if not MIN_MEMORY_BYTES <= size <= MAX_MEMORY_BYTES:
        limits = f"{format_bytes(MIN_MEMORY_BYTES)} to {format_bytes(MAX_MEMORY_BYTES)}"
        raise InvalidInput(f"--memory {text}: a software GPU has {limits}")
    return f"{size >> 10}KiB"


def merge_settings(inherited: str, chosen: dict[str, str]) -> str:
    """Return the list of settings: ``chosen`` instead of those of the same name in ``inherited``."""
    kept = [item for item in inherited.split(",") if item and item.partition("=")[0] not in chosen]
    return ",".join([*kept, *(f"{key}={value}" for key, value in chosen.items())])
