"""``python -m farbus.remoting.codegen [--check]``: write or compare the generated files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from farbus.remoting.codegen import abi, client, coverage, management, marshal, server, wire

ROOT = Path(__file__).resolve().parents[2]

OUTPUTS: dict[str, Callable[[], str]] = {
    "native/generated/cuda_abi.h": abi.generate_abi,
    "native/generated/wire_ops.h": wire.generate_wire,
    "native/generated/wire_ops.c": wire.generate_wire_table,
    "native/generated/server_driver.h": server.generate_driver_header,
    "native/generated/server_handlers.h": server.generate_handlers_header,
    "native/generated/server_dispatch.c": server.generate_dispatch,
    "native/generated/client_api.h": client.generate_api_header,
    "native/generated/client_stubs.c": client.generate_stubs,
    "native/generated/client_entries.c": client.generate_entries,
    "native/generated/params.h": marshal.generate_params,
    "native/generated/client_calls.c": marshal.generate_client_calls,
    "native/generated/client_raw.h": marshal.generate_raw_header,
    "native/generated/server_calls.c": marshal.generate_server_calls,
    "native/generated/client.map": client.generate_exports,
    "native/generated/nvml_functions.h": management.generate_functions,
    "native/generated/nvml_names.h": management.generate_names,
    "native/generated/nvml.map": management.generate_map,
    "docs/coverage.md": coverage.generate_coverage,
    "docs/coverage-nvml.md": management.generate_coverage,
}


def main(arguments: Sequence[str]) -> int:
    """Write the generated files, or with ``--check`` name those that differ."""
    if list(arguments) not in ([], ["--check"]):
        print("usage: python -m farbus.remoting.codegen [--check]", file=sys.stderr)
        return 2
    check = bool(arguments)
    stale = []
    for name, generate in OUTPUTS.items():
        path, text = ROOT / name, generate()
        if path.exists() and path.read_text() == text:
            continue
        if check:
            stale.append(name)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(f"wrote {name}")
    for name in stale:
        print(
            f"{name}: differs from remoting/spec; run python -m farbus.remoting.codegen",
            file=sys.stderr,
        )
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
