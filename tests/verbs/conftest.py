"""The tests' own RDMA device, and the program that uses it, both built once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.verbs.fake import build_contract, build_library


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the library and the program."""
    folder = tmp_path_factory.mktemp("verbs")
    build_library(folder)
    build_contract(folder / "contract")
    return folder
