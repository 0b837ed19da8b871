from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KIND_UNSPECIFIED: _ClassVar[Kind]
    KIND_SPOOL: _ClassVar[Kind]
    KIND_AUDIT: _ClassVar[Kind]
KIND_UNSPECIFIED: Kind
KIND_SPOOL: Kind
KIND_AUDIT: Kind

class ResultsRequest(_message.Message):
    __slots__ = ("since",)
    SINCE_FIELD_NUMBER: _ClassVar[int]
    since: int
    def __init__(self, since: _Optional[int] = ...) -> None: ...

class Result(_message.Message):
    __slots__ = ("sequence", "spool_id", "request_id", "model", "cloud_model", "kind", "tags", "reason", "created_unix_s", "answered_unix_s", "answer", "edge_answer", "edge_answer_digest")
    class TagsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SPOOL_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CLOUD_MODEL_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CREATED_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    EDGE_ANSWER_FIELD_NUMBER: _ClassVar[int]
    EDGE_ANSWER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    spool_id: str
    request_id: str
    model: str
    cloud_model: str
    kind: Kind
    tags: _containers.ScalarMap[str, str]
    reason: str
    created_unix_s: float
    answered_unix_s: float
    answer: bytes
    edge_answer: bytes
    edge_answer_digest: str
    def __init__(self, sequence: _Optional[int] = ..., spool_id: _Optional[str] = ..., request_id: _Optional[str] = ..., model: _Optional[str] = ..., cloud_model: _Optional[str] = ..., kind: _Optional[_Union[Kind, str]] = ..., tags: _Optional[_Mapping[str, str]] = ..., reason: _Optional[str] = ..., created_unix_s: _Optional[float] = ..., answered_unix_s: _Optional[float] = ..., answer: _Optional[bytes] = ..., edge_answer: _Optional[bytes] = ..., edge_answer_digest: _Optional[str] = ...) -> None: ...
