from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LogEntry(_message.Message):
    __slots__ = ["source", "time_nano", "line", "partial", "piece"]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TIME_NANO_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    source: str
    time_nano: int
    line: bytes
    partial: bool
    piece: PieceMetadata
    def __init__(self, source: _Optional[str] = ..., time_nano: _Optional[int] = ..., line: _Optional[bytes] = ..., partial: bool = ..., piece: _Optional[_Union[PieceMetadata, _Mapping]] = ...) -> None: ...

class PieceMetadata(_message.Message):
    __slots__ = ["last", "id", "ordinal"]
    LAST_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    ORDINAL_FIELD_NUMBER: _ClassVar[int]
    last: bool
    id: str
    ordinal: int
    def __init__(self, last: bool = ..., id: _Optional[str] = ..., ordinal: _Optional[int] = ...) -> None: ...
