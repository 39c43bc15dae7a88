"""Files that travel with a job: named by content, listed in manifests, with paths that lead nowhere else."""

from __future__ import annotations

import hashlib

import msgspec

from farbus.errors import InvalidInput
from farbus.model.value import Value

MAX_FILES = 20_000
"""Files of one job in one direction."""

MAX_FILE_BYTES = 64 * 2**30
"""Largest file; a job's files together and a user's have limits of their own, which operators set."""

MAX_PATH_BYTES = 1_024
MAX_NAME_BYTES = 255
"""Longest name in a directory: NAME_MAX of linux/limits.h."""

MAX_DEPTH = 32
"""Most directories in a path."""

MAX_MANIFEST_BYTES = 16 * 2**20
"""Largest manifest: 20,000 files with paths of some 700 bytes."""

MAX_OUTPUTS = 256
"""Paths that a job names as its output; each may be a directory."""

CHUNK_BYTES = 2**20
"""Bytes of a file in one message."""


class StagedFile(Value, frozen=True, kw_only=True):
    """One regular file: where it is below the task's directory, and what is in it."""

    path: str
    size: int
    sha256: str
    """In hexadecimal."""
    executable: bool = False


class ReceivedFile(Value, frozen=True, kw_only=True):
    """What has come of a file whose transfer broke off, or of one that is whole."""

    path: str
    size: int
    """Of the whole file."""
    received: int
    sha256: str
    """Of the bytes that were received."""


class Manifest(Value, frozen=True, kw_only=True):
    """The files of a job in one direction, in the order of their paths."""

    files: tuple[StagedFile, ...]

    @property
    def total_bytes(self) -> int:
        """Bytes of all files together."""
        return sum(file.size for file in self.files)

    def encode(self) -> bytes:
        """Return the manifest as JSON."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Read and check a manifest; raise :class:`InvalidInput` naming the file that can't be."""
        if len(data) > MAX_MANIFEST_BYTES:
            raise InvalidInput(f"the list of files is longer than {MAX_MANIFEST_BYTES} bytes")
        try:
            manifest = msgspec.json.decode(data, type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InvalidInput("the list of files is malformed") from error
        check_files(manifest.files)
        return manifest


def digest(data: bytes) -> str:
    """Return the name of a content."""
    return hashlib.sha256(data).hexdigest()


def check_digest(text: str, *, what: str = "") -> str:
    """Return ``text`` if it can be the name of a content; raise :class:`InvalidInput`, beginning with ``what``."""
    if len(text) != 64 or any(each not in "0123456789abcdef" for each in text):
        raise InvalidInput(f"{what}{': ' if what else ''}{text[:80]!r} is not a SHA-256 in hexadecimal")
    return text


def check_path(path: str, *, what: str = "path") -> str:
    """Return ``path`` if it is relative and stays below where it begins; raise :class:`InvalidInput`.

    Refused: empty, absolute, with ``.`` or ``..``, with control characters
    (NUL and newlines among them) or what is not UTF-8, too long, too deep.
    """
    shown = "".join(each if each.isprintable() else "?" for each in path)[:200]
    try:
        encoded = path.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{what} {shown}: is not UTF-8", hint="rename the file") from error
    names = path.split("/")
    if not path or path.startswith("/"):
        raise InvalidInput(f"{what} {shown or repr(path)}: must be relative", hint="name it below the task's directory")
    if any(name in ("", ".", "..") for name in names):
        raise InvalidInput(f"{what} {shown}: has an empty part, . or ..", hint="write it in its shortest form")
    # Category C of Unicode: controls, formats that reorder text, surrogates, what is not assigned.
    if not all(each.isprintable() for each in path):
        raise InvalidInput(f"{what} {shown}: has a character that can't be printed", hint="rename the file")
    if len(encoded) > MAX_PATH_BYTES or any(len(name.encode()) > MAX_NAME_BYTES for name in names):
        raise InvalidInput(f"{what} {shown}: longer than {MAX_PATH_BYTES} bytes, or {MAX_NAME_BYTES} in one part")
    if len(names) > MAX_DEPTH:
        raise InvalidInput(f"{what} {shown}: deeper than {MAX_DEPTH} directories", hint="pack them into an archive")
    return path


def check_files(files: tuple[StagedFile, ...]) -> None:
    """Raise :class:`InvalidInput` for files that can't be below one directory together."""
    if len(files) > MAX_FILES:
        raise InvalidInput(f"{len(files)} files are more than {MAX_FILES}", hint="pack them into an archive")
    paths = set()
    for file in files:
        check_path(file.path)
        check_digest(file.sha256)
        if not 0 <= file.size <= MAX_FILE_BYTES:
            raise InvalidInput(f"path {file.path}: its size is not from 0 to {MAX_FILE_BYTES}")
        if file.path in paths:
            raise InvalidInput(f"path {file.path}: stands twice", hint="give each file a place of its own")
        paths.add(file.path)
    for path in paths:
        parent = path
        while "/" in parent:
            parent = parent.rpartition("/")[0]
            if parent in paths:
                raise InvalidInput(f"path {parent}: is a file and a directory", hint="rename one")
