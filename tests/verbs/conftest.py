"""The tests' own RDMA device, and the program that uses it, both built once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.verbs.fake import build_contract, build_library


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the library and the program, compiled with what FAKE_VERBS_FLAGS adds (make asan, make tsan)."""
    folder = tmp_path_factory.mktemp("verbs")
    flags = os.environ.get("FAKE_VERBS_FLAGS", "").split()
    build_library(folder, *flags)
    build_contract(folder / "contract", *flags)
    return folder
