from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MissingRequest(_message.Message):
    __slots__ = ("sha256",)
    SHA256_FIELD_NUMBER: _ClassVar[int]
    sha256: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, sha256: _Optional[_Iterable[str]] = ...) -> None: ...

class MissingReply(_message.Message):
    __slots__ = ("sha256", "received")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    sha256: _containers.RepeatedScalarFieldContainer[str]
    received: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, sha256: _Optional[_Iterable[str]] = ..., received: _Optional[_Iterable[int]] = ...) -> None: ...

class ContentChunk(_message.Message):
    __slots__ = ("sha256", "size", "data", "offset")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    sha256: str
    size: int
    data: bytes
    offset: int
    def __init__(self, sha256: _Optional[str] = ..., size: _Optional[int] = ..., data: _Optional[bytes] = ..., offset: _Optional[int] = ...) -> None: ...

class PutReply(_message.Message):
    __slots__ = ("files", "bytes")
    FILES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    files: int
    bytes: int
    def __init__(self, files: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("job_id", "sha256", "offset")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    sha256: _containers.RepeatedScalarFieldContainer[str]
    offset: int
    def __init__(self, job_id: _Optional[str] = ..., sha256: _Optional[_Iterable[str]] = ..., offset: _Optional[int] = ...) -> None: ...

class OutputChunk(_message.Message):
    __slots__ = ("job_id", "task", "path", "size", "executable", "data", "sha256", "end", "offset")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    EXECUTABLE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    task: str
    path: str
    size: int
    executable: bool
    data: bytes
    sha256: str
    end: bool
    offset: int
    def __init__(self, job_id: _Optional[str] = ..., task: _Optional[str] = ..., path: _Optional[str] = ..., size: _Optional[int] = ..., executable: _Optional[bool] = ..., data: _Optional[bytes] = ..., sha256: _Optional[str] = ..., end: _Optional[bool] = ..., offset: _Optional[int] = ...) -> None: ...

class OutputRequest(_message.Message):
    __slots__ = ("job_id", "files", "offset", "sha256")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    files: _containers.RepeatedScalarFieldContainer[int]
    offset: int
    sha256: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, job_id: _Optional[str] = ..., files: _Optional[_Iterable[int]] = ..., offset: _Optional[int] = ..., sha256: _Optional[_Iterable[str]] = ...) -> None: ...

class OutputFile(_message.Message):
    __slots__ = ("task", "path", "size", "sha256", "executable")
    TASK_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    EXECUTABLE_FIELD_NUMBER: _ClassVar[int]
    task: str
    path: str
    size: int
    sha256: str
    executable: bool
    def __init__(self, task: _Optional[str] = ..., path: _Optional[str] = ..., size: _Optional[int] = ..., sha256: _Optional[str] = ..., executable: _Optional[bool] = ...) -> None: ...

class ListOutputReply(_message.Message):
    __slots__ = ("files",)
    FILES_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedCompositeFieldContainer[OutputFile]
    def __init__(self, files: _Optional[_Iterable[_Union[OutputFile, _Mapping]]] = ...) -> None: ...

class ReceivedOutputRequest(_message.Message):
    __slots__ = ("job_id", "task")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    task: str
    def __init__(self, job_id: _Optional[str] = ..., task: _Optional[str] = ...) -> None: ...

class ReceivedFile(_message.Message):
    __slots__ = ("path", "size", "received", "sha256")
    PATH_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    path: str
    size: int
    received: int
    sha256: str
    def __init__(self, path: _Optional[str] = ..., size: _Optional[int] = ..., received: _Optional[int] = ..., sha256: _Optional[str] = ...) -> None: ...

class ReceivedOutputReply(_message.Message):
    __slots__ = ("files",)
    FILES_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedCompositeFieldContainer[ReceivedFile]
    def __init__(self, files: _Optional[_Iterable[_Union[ReceivedFile, _Mapping]]] = ...) -> None: ...
