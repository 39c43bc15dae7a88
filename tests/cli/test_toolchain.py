"""Where nvcc is looked for, and what is said when it is not there."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from farbus.cli import toolchain
from farbus.cli.toolchain import find_toolchain
from farbus.errors import FarbusError, NotFound

SAYS = "#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n"


def put_nvcc(directory: Path, script: str) -> Path:
    directory.mkdir(parents=True)
    nvcc = directory / "nvcc"
    nvcc.write_text(script)
    nvcc.chmod(0o755)
    return nvcc


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Site packages that hold nothing yet, and an empty PATH but for ``path``."""
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / "site"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    return tmp_path / "site"


def test_the_one_in_path_goes_first(tmp_path: Path, site: Path) -> None:
    nvcc = put_nvcc(tmp_path / "path", SAYS)
    put_nvcc(site / "nvidia" / "cu13" / "bin", SAYS)
    found = find_toolchain()
    assert (found.nvcc, found.flags, found.version) == (str(nvcc), (), "13.0.88")


def test_that_of_the_wheels_is_told_where_its_libraries_are(site: Path) -> None:
    nvcc = put_nvcc(site / "nvidia" / "cu13" / "bin", SAYS)
    found = find_toolchain()
    assert found.command("a.cu", "a") == [str(nvcc), f"-L{site}/nvidia/cu13/lib", "-o", "a", "a.cu"]


def test_a_wrapper_of_a_toolkit_that_is_gone_is_passed_over(tmp_path: Path, site: Path) -> None:
    put_nvcc(tmp_path / "path", "#!/bin/sh\nexit 127\n")
    nvcc = put_nvcc(site / "nvidia" / "cu13" / "bin", SAYS)
    assert find_toolchain().nvcc == str(nvcc)


def test_without_any_it_is_said_what_to_do(tmp_path: Path, site: Path) -> None:
    put_nvcc(tmp_path / "path", "#!/bin/sh\nexit 3\n")
    with pytest.raises(NotFound, match=r"no nvcc that works; .*exit code 3; put a CUDA toolkit's bin"):
        find_toolchain()


def test_a_complaint_of_the_compiler_is_the_error(tmp_path: Path) -> None:
    script = "#!/bin/sh\necho 'a.cu(3): error: expected a \";\"' >&2\necho '1 error detected' >&2\nexit 2\n"
    nvcc = put_nvcc(tmp_path / "bin", script)
    with pytest.raises(FarbusError, match=r'^nvcc a.cu: a.cu\(3\): error: expected a ";"$'):
        toolchain.Toolchain(nvcc=str(nvcc), version="13.0.88").compile("a.cu", "a")
