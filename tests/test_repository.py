"""The repository's own rules: linters, contracts, generated code, pins, layout."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent


def run(*command: str | Path) -> None:
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{command[0]} says:\n{result.stdout}{result.stderr}"


def tracked_files(*patterns: str) -> list[Path]:
    """Return the files that git tracks, or all files in a tree without git (an unpacked sdist)."""
    try:
        listing = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs a git checkout to know which files belong to the repository")
    return [
        ROOT / os.fsdecode(name) for name in listing.stdout.split(b"\0") if name and (ROOT / os.fsdecode(name)).exists()
    ]


def test_ruff_finds_nothing() -> None:
    run(BIN / "ruff", "check", ".")


def test_code_is_formatted() -> None:
    run(BIN / "ruff", "format", "--check", ".")


def test_types_are_right() -> None:
    run(BIN / "mypy")


def test_import_contracts_hold() -> None:
    run(BIN / "lint-imports")


def test_messages_are_generated_from_the_protos(tmp_path: Path) -> None:
    protos = sorted(path.relative_to(ROOT) for path in (ROOT / "farbus/api/v1").glob("*.proto"))
    out = [f"--{kind}={tmp_path}" for kind in ("python_out", "pyi_out", "grpc_python_out")]
    run(sys.executable, "-m", "grpc_tools.protoc", "-I.", *out, *map(str, protos))
    made = {path.name: path.read_text() for path in (tmp_path / "farbus/api/v1").iterdir()}
    kept = {path.name: path.read_text() for path in (ROOT / "farbus/api/v1").glob("*_pb2*.py*")}
    assert made == kept, (
        "run: python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. farbus/api/v1/*.proto"
    )


def test_remoting_is_generated_from_the_spec() -> None:
    run(sys.executable, "-m", "farbus.remoting.codegen", "--check")


def test_installed_packages_satisfy_the_pins() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wrong = []
    for line in project["dependencies"]:
        requirement = Requirement(line)
        version = importlib.metadata.version(requirement.name)
        if not requirement.specifier.contains(version):
            wrong.append(f"{line}: {version} is installed")
    assert not wrong


def test_stubs_protobuf_and_ortools_fit_together() -> None:
    # docs/decisions/0003-pinned-dependencies.md
    assert importlib.metadata.version("protobuf").startswith("6.33.")
    assert importlib.metadata.version("ortools").startswith("9.15.")
    stub = (ROOT / "farbus/api/v1/cluster_pb2_grpc.py").read_text()
    assert "GRPC_GENERATED_VERSION = '1.81." in stub


@pytest.mark.parametrize("name", ["agent", "hotplug", "nvmeof", "remoting", "scheduler", "systemd"])
def test_subpackage_is_a_link_to_the_directory_at_the_root(name: str) -> None:
    assert os.readlink(ROOT / "farbus" / name) == f"../{name}"


# Spelt in two parts, so that this file does not find itself.
FORBIDDEN = {
    "a path of a developer's machine": re.compile(r"/(?:work|root)/(?!\*)" + r"\w"),
    "a note to finish it later": re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b"),
    "the copyright line of a CUDA header": re.compile(r"Copyright .* NVIDIA " + r"Corporation"),
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_contains(what: str) -> None:
    found = []
    for path in tracked_files():
        if path.is_symlink() or path.suffix in {".png", ".bin"}:
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
            if FORBIDDEN[what].search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert not found, "\n".join(found)


def test_children_take_no_module_from_the_working_directory() -> None:
    """``python -m`` looks there first, so that a user's ``json.py`` would be run, by root too.  ``-P`` prevents it."""
    started = re.compile(r"sys\.executable,\s*\"-m\"")
    files = [path for path in tracked_files("*.py") if "tests" not in path.relative_to(ROOT).parts]
    assert not [str(path) for path in files if started.search(path.read_text())]


def headings(page: Path) -> set[str]:
    """The names by which links reach the headings of a page: letters, digits and hyphens of their text."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    shown = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line) for line in re.findall(r"^#+ (.*)$", text, re.MULTILINE)]
    return {re.sub(r"[^\w -]", "", line.strip().lower()).replace(" ", "-") for line in shown}


def test_links_to_headings_find_them() -> None:
    pages = {page.resolve(): headings(page) for page in tracked_files("*.md")}
    broken = []
    for page in pages:
        for target, heading in re.findall(r"\]\(([^)#:\s]*)#([^)\s]+)\)", page.read_text()):
            found = pages.get((page.parent / target).resolve() if target else page)
            if found is not None and heading not in found:
                broken.append(f"{page.relative_to(ROOT.resolve())}: {target}#{heading}")
    assert not broken, "\n".join(broken)


def test_links_in_the_docs_lead_somewhere() -> None:
    broken = []
    for page in tracked_files("*.md"):
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text()):
            if not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert not broken, "\n".join(broken)
