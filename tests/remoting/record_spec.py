"""``python -m tests.remoting.record_spec``: print what this protocol version has, for specs/MAJOR.MINOR.json.

A version that is published stays as it was recorded; one that is not yet is recorded anew whenever something is added.
"""

from __future__ import annotations

import json
from typing import Any

from farbus.remoting import session
from farbus.remoting.spec import ENTRIES, EVENTS, OPERATIONS, Field


def described(fields: tuple[Field, ...]) -> list[str]:
    """Each field as "type name count"."""
    return [f"{field.handle or field.scalar.name.lower()} {field.name} {field.count}" for field in fields]


def travelling(directions: str) -> str:
    """The directions without the words of one side alone, which do not travel: where the client's code is, and whether
    the server goes on with others meanwhile."""
    return " ".join(word for word in directions.split() if word not in {"hand", "pass"})


def spec() -> dict[str, Any]:
    """Operations, events and functions by name, as a file of specs/ has them."""
    functions: dict[str, Any] = {}
    for entry in ENTRIES:
        functions[entry.symbol] = {"number": entry.number}
        if entry.marshalled is not None:
            functions[entry.symbol] |= {"parameters": entry.parameters, "directions": entry.marshalled}
    return {
        "version": f"{session.PROTOCOL_MAJOR}.{session.PROTOCOL_MINOR}",
        "operations": {
            op.name: {
                "opcode": op.opcode,
                "answer": op.answer.value,
                "request": described(op.request),
                "reply": described(op.reply),
            }
            for op in OPERATIONS
        },
        "events": {name: {"opcode": opcode, "fields": described(fields)} for opcode, name, fields, _, _ in EVENTS},
        "functions": functions,
    }


def render(value: dict[str, Any]) -> str:
    """One line for each operation, event and function."""
    parts = [f'"version": {json.dumps(value["version"])}']
    for section in ("operations", "events", "functions"):
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(item)}" for name, item in value[section].items())
        parts.append(f'"{section}": {{\n{lines}\n}}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    print(render(spec()), end="")
