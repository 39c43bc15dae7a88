"""docs/softgpu.md says what the software GPU does."""

from __future__ import annotations

import re

from tests.softgpu.document import DOCUMENT, ROOT, with_tables

OPTIONS = ROOT / "native" / "softgpu" / "driver" / "board_options.c"


def test_tables_are_those_of_the_engine_and_the_driver() -> None:
    text = DOCUMENT.read_text()
    assert with_tables(text) == text, "run python -m tests.softgpu.document"


def test_every_setting_is_described() -> None:
    settings = re.findall(r'!strcmp\(key, "(\w+)"\)', OPTIONS.read_text())
    assert settings
    assert [name for name in settings if f"| `{name}` |" not in DOCUMENT.read_text()] == []
