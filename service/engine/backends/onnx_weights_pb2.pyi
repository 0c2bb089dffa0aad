from collections.abc import Iterable as _Iterable
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar

from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from google.protobuf.internal import containers as _containers

DESCRIPTOR: _descriptor.FileDescriptor

class ModelProto(_message.Message):
    __slots__ = ("graph",)
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    graph: GraphProto
    def __init__(self, graph: GraphProto | _Mapping | None = ...) -> None: ...

class GraphProto(_message.Message):
    __slots__ = ("initializer",)
    INITIALIZER_FIELD_NUMBER: _ClassVar[int]
    initializer: _containers.RepeatedCompositeFieldContainer[TensorProto]
    def __init__(self, initializer: _Iterable[TensorProto | _Mapping] | None = ...) -> None: ...

class TensorProto(_message.Message):
    __slots__ = ("data_location", "external_data", "raw_data")
    RAW_DATA_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_DATA_FIELD_NUMBER: _ClassVar[int]
    DATA_LOCATION_FIELD_NUMBER: _ClassVar[int]
    raw_data: bytes
    external_data: _containers.RepeatedCompositeFieldContainer[StringStringEntryProto]
    data_location: int
    def __init__(
        self,
        raw_data: bytes | None = ...,
        external_data: _Iterable[StringStringEntryProto | _Mapping] | None = ...,
        data_location: int | None = ...,
    ) -> None: ...

class StringStringEntryProto(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    def __init__(self, key: str | None = ..., value: str | None = ...) -> None: ...
