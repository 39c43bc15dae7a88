"""Paths of files that travel: what stays below a directory, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farbus.errors import InvalidInput
from farbus.model.staging import MAX_FILES, Manifest, StagedFile, check_digest, check_path, digest


def staged(path: str, *, size: int = 0) -> StagedFile:
    return StagedFile(path=path, size=size, sha256=digest(b""))


@pytest.mark.parametrize("path", ["a", "a/b", "é/日本", "a b", "-rf", "...", "a.b/..c"])
def test_path_below_the_directory_is_taken(path: str) -> None:
    assert check_path(path) == path


@pytest.mark.parametrize(
    "path",
    ["", "/", "/etc/passwd", "..", "a/..", "../a", "a/../../b", ".", "./a", "a//b", "a/", "a\nb", "a\0b", "a\x1b[0m",
     "a\u202eb", "a\udcffb", "\ufeffa", "x" * 256, "/".join("a" * 33), "é" * 600],
)  # fmt: skip
def test_path_that_leads_elsewhere_or_hides_something_is_refused(path: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_path(path)
    assert str(caught.value).isprintable()


@settings(max_examples=50)
@given(st.text(max_size=20))
def test_path_that_is_taken_stays_below(path: str) -> None:
    try:
        check_path(path)
    except InvalidInput:
        return
    assert not path.startswith("/")
    assert ".." not in path.split("/")
    assert path.isprintable()


@pytest.mark.parametrize("text", ["", "a" * 63, "A" * 64, "g" * 64, "../" + "a" * 61])
def test_what_is_no_digest_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not a SHA-256"):
        check_digest(text)


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ((staged("a"), staged("a")), "path a: stands twice"),
        ((staged("a/b"), staged("a")), "path a: is a file and a directory"),
        ((staged("../a"),), "has an empty part"),
        ((staged("a", size=-1),), "its size is not from 0"),
    ],
)
def test_list_that_can_not_be_is_refused(files: tuple[StagedFile, ...], told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        Manifest.decode(Manifest(files=files).encode())


def test_more_files_than_a_job_may_have_are_refused() -> None:
    files = tuple(staged(f"f{number}") for number in range(MAX_FILES + 1))
    with pytest.raises(InvalidInput, match="20001 files are more than 20000; pack them"):
        Manifest.decode(Manifest(files=files).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b'{"files": 1}', b"\xff"])
def test_malformed_list_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidInput, match="malformed"):
        Manifest.decode(data)
