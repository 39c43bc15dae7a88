"""The specification holds together, and covers what CUDA's runtime asks for."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections import Counter
from pathlib import Path

import pytest

from farbus.remoting.codegen.__main__ import main
from farbus.remoting.codegen.wire import message_size
from farbus.remoting.spec import ENTRIES, OPERATIONS, Answer, functions
from farbus.remoting.spec.details import detail_of

LOOKUPS = Path(__file__).resolve().parents[2].parent / "shared" / "facts" / "cudart-lookups.txt"


def duplicates(values: list[object]) -> list[object]:
    return [value for value, count in Counter(values).items() if count > 1]


def test_generated_files_are_up_to_date() -> None:
    assert main(["--check"]) == 0


def test_every_chapter_is_in_the_whole() -> None:
    chapters = [
        importlib.import_module(f"{functions.__name__}.{found.name}")
        for found in pkgutil.iter_modules(functions.__path__)
    ]
    entries = [entry for chapter in chapters for entry in getattr(chapter, "ENTRIES", ())]
    assert sorted(entries, key=lambda entry: entry.number) == list(ENTRIES)


def test_numbers_symbols_and_opcodes_are_unique() -> None:
    assert duplicates([entry.number for entry in ENTRIES]) == []
    assert duplicates([entry.symbol for entry in ENTRIES]) == []
    assert duplicates([(entry.name, entry.version) for entry in ENTRIES]) == []
    assert duplicates([op.opcode for op in OPERATIONS]) == []


def test_an_unsupported_entry_has_a_reason_and_another_none() -> None:
    for entry in ENTRIES:
        assert bool(entry.reason) == (entry.answer is Answer.UNSUPPORTED), entry.symbol


def test_fixed_parts_fit_the_server_s_buffers() -> None:
    for op in OPERATIONS:
        assert message_size(op.request) <= 128, op.name
        assert message_size(op.reply) <= 128, op.name


def test_a_posted_operation_has_no_reply_and_does_not_block() -> None:
    for op in OPERATIONS:
        if op.answer is Answer.POSTED:
            assert (op.reply, op.reply_tail, op.blocking) == ((), 0, False), op.name


def test_every_look_up_of_the_runtime_has_an_entry() -> None:
    if not LOOKUPS.exists():
        pytest.skip(f"{LOOKUPS.name} is not beside this checkout")
    names = {entry.name for entry in ENTRIES}
    symbols = {entry.per_thread_symbol for entry in ENTRIES}
    missing = []
    for line in LOOKUPS.read_text().splitlines():
        found = re.match(r"(cu\w+) (\d+) (\d+) :", line)
        if found and found[1] not in names and found[1] not in symbols:
            missing.append(found[1])
    assert missing == []


def test_a_trace_tells_bytes_of_what_copies_fills_and_allocates_and_names_of_what_launches() -> None:
    silent = {
        entry.name
        for entry in ENTRIES
        if re.match(r"cuMem(cpy|set(?!Attr)|.*Alloc)|cu.*Array(3D)?Create|cuLaunch|cu(Module|Library)Load", entry.name)
        and entry.answer is not Answer.UNSUPPORTED
        and not detail_of(entry.name)
    }
    assert not {name for name in silent if not re.search(r"Get|Retain|HostFunc", name)}
