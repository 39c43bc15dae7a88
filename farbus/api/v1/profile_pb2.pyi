from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ObservedRun(_message.Message):
    __slots__ = ("application", "flavour", "sharing", "network_load", "seconds", "user", "shape")
    APPLICATION_FIELD_NUMBER: _ClassVar[int]
    FLAVOUR_FIELD_NUMBER: _ClassVar[int]
    SHARING_FIELD_NUMBER: _ClassVar[int]
    NETWORK_LOAD_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    application: str
    flavour: str
    sharing: int
    network_load: float
    seconds: float
    user: str
    shape: str
    def __init__(self, application: _Optional[str] = ..., flavour: _Optional[str] = ..., sharing: _Optional[int] = ..., network_load: _Optional[float] = ..., seconds: _Optional[float] = ..., user: _Optional[str] = ..., shape: _Optional[str] = ...) -> None: ...

class FlavourTime(_message.Message):
    __slots__ = ("flavour", "sharing", "count", "median_s", "spread_s")
    FLAVOUR_FIELD_NUMBER: _ClassVar[int]
    SHARING_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    MEDIAN_S_FIELD_NUMBER: _ClassVar[int]
    SPREAD_S_FIELD_NUMBER: _ClassVar[int]
    flavour: str
    sharing: int
    count: int
    median_s: float
    spread_s: float
    def __init__(self, flavour: _Optional[str] = ..., sharing: _Optional[int] = ..., count: _Optional[int] = ..., median_s: _Optional[float] = ..., spread_s: _Optional[float] = ...) -> None: ...

class ApplicationProfile(_message.Message):
    __slots__ = ("application", "times", "sensitivity", "sensitivity_count", "user", "set_by", "set_at", "runs")
    APPLICATION_FIELD_NUMBER: _ClassVar[int]
    TIMES_FIELD_NUMBER: _ClassVar[int]
    SENSITIVITY_FIELD_NUMBER: _ClassVar[int]
    SENSITIVITY_COUNT_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    SET_BY_FIELD_NUMBER: _ClassVar[int]
    SET_AT_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    application: str
    times: _containers.RepeatedCompositeFieldContainer[FlavourTime]
    sensitivity: float
    sensitivity_count: int
    user: str
    set_by: str
    set_at: float
    runs: _containers.RepeatedCompositeFieldContainer[ObservedRun]
    def __init__(self, application: _Optional[str] = ..., times: _Optional[_Iterable[_Union[FlavourTime, _Mapping]]] = ..., sensitivity: _Optional[float] = ..., sensitivity_count: _Optional[int] = ..., user: _Optional[str] = ..., set_by: _Optional[str] = ..., set_at: _Optional[float] = ..., runs: _Optional[_Iterable[_Union[ObservedRun, _Mapping]]] = ...) -> None: ...
