"""``python -m tests.remoting.record_version``: record what this version of the protocol has (specs/).

Once, when a version is made.  A recorded version that was published never changes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from farbus.remoting.spec import ENTRIES, EVENTS, OPERATIONS
from tests.remoting.test_versions import CURRENT, SPECS, described


def _lines(rows: Mapping[str, object]) -> str:
    return ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())


def recording() -> str:
    """Return this version as JSON, a line for each operation, event and function."""
    operations = {
        op.name: {
            "opcode": op.opcode,
            "answer": op.answer.value,
            "request": described(op.request),
            "reply": described(op.reply),
        }
        for op in OPERATIONS
    }
    events = {name: {"opcode": opcode, "fields": described(fields)} for opcode, name, fields, _, _ in EVENTS}
    functions: dict[str, dict[str, object]] = {}
    for entry in ENTRIES:
        functions[entry.symbol] = {"number": entry.number}
        if entry.marshalled is not None:
            functions[entry.symbol] |= {"parameters": entry.parameters, "directions": entry.marshalled}
    return (
        f'{{\n"version": "{CURRENT}",\n"operations": {{\n{_lines(operations)}\n}},\n'
        f'"events": {{\n{_lines(events)}\n}},\n"functions": {{\n{_lines(functions)}\n}}\n}}\n'
    )


if __name__ == "__main__":
    (SPECS / f"{CURRENT}.json").write_text(recording())
