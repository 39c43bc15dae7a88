"""The tables of docs/softgpu.md, from the engine and the driver themselves.

`python -m tests.softgpu.document` writes them anew; test_document.py compares.
"""

from __future__ import annotations

import re

from tests.softgpu.engine import ROOT, form_names

DOCUMENT = ROOT / "docs" / "softgpu.md"
MISSING = ROOT / "native" / "softgpu" / "api" / "missing.c"


def _grouped(names: list[tuple[str, str]], heads: tuple[str, str]) -> str:
    """A row per head, its words in the order they came, each once."""
    rows: dict[str, dict[str, None]] = {}
    for head, word in names:
        rows.setdefault(head, {})[word] = None
    lines = [f"| {heads[0]} | {heads[1]} |", "|---|---|"]
    lines += [f"| {head} | {' '.join(rows[head])} |" for head in sorted(rows)]
    return "\n".join(lines)


def instructions() -> str:
    """One row per opcode with all its spellings; what starts with @ is a step of the engine itself."""
    split = [name.split(".", 1) for name in form_names() if not name.startswith("@")]
    return _grouped([(opcode, f"`.{rest[0]}`" if rest else "-") for opcode, *rest in split], ("opcode", "forms"))


# The engine's letters for types that share a size (ptx/parse.h).
ATOMIC_TYPES = {"h16": "bf16", "x32": "f16x2", "y32": "bf16x2", "u16": "b16"}


def atomics() -> str:
    found = re.findall(r"@atomic\.(\w+)\.pointer\.(\w+)", "\n".join(form_names()))
    named = [(operation, f"`.{ATOMIC_TYPES.get(kind, kind)}`") for operation, kind in found]
    return _grouped(named, ("operation", "types"))


def missing_names() -> list[str]:
    """The driver functions that answer CUDA_ERROR_NOT_SUPPORTED."""
    return re.findall(r"^MISSING\((cu\w+)\)", MISSING.read_text(), re.MULTILINE)


def missing_functions() -> str:
    """The same, by what follows `cu`."""
    grouped = [(re.sub(r"^(cu[A-Z][a-z0-9]*).*", r"\1", name), f"`{name}`") for name in missing_names()]
    return _grouped(grouped, ("group", "functions"))


SECTIONS = {"instructions": instructions, "atomics": atomics, "missing functions": missing_functions}


def with_tables(text: str) -> str:
    """The document with the tables between its marks written anew."""
    for name, table in SECTIONS.items():
        begin, end = f"<!-- generated: {name} -->\n", "<!-- end -->"
        before, found, rest = text.partition(begin)
        if not found:
            raise ValueError(f"{DOCUMENT.name} has no mark {begin.strip()}")
        text = before + begin + table() + "\n" + end + rest.partition(end)[2]
    return text


if __name__ == "__main__":
    DOCUMENT.write_text(with_tables(DOCUMENT.read_text()))
