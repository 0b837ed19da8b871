"""Reflection under the service's path on the wire, as grpcurl and its kind ask for it."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha import reflection
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from tests.integration.oip.harness import TIMEOUT_S, Serve
from upwell.rpc.oip.v2 import open_inference_grpc_pb2 as pb
from upwell.shared.oip.grpc.server.model_stream import METHOD as STREAM_METHOD
from upwell.shared.oip.grpc.server.reflection import service_pool
from upwell.shared.oip.grpc.server.servicer import METHODS, SERVICE


def add_reflection(server: grpc.Server) -> None:
    reflection.enable_server_reflection((SERVICE,), server, pool=service_pool())


def test_a_client_that_knows_nothing_can_call_every_method(serve: Serve) -> None:
    server = serve(extra=[add_reflection])
    with grpc.insecure_channel(server.addresses[0]) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert SERVICE in database.get_services()
        service = DescriptorPool(database).FindServiceByName(SERVICE)
        assert [method.name for method in service.methods] == [*METHODS, STREAM_METHOD]
        stream = service.methods_by_name[STREAM_METHOD]
        assert stream.client_streaming
        assert stream.server_streaming
        method = service.FindMethodByName("ModelMetadata")
        request_type: Any = GetMessageClass(method.input_type)
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/{SERVICE}/{method.name}")
        answer = call(request_type(name="echo").SerializeToString(), timeout=TIMEOUT_S)
        found: Any = GetMessageClass(method.output_type).FromString(answer)
        assert found.platform == "fake"


def test_the_process_wide_pool_is_left_alone() -> None:
    file = FileDescriptorProto()
    service_pool().FindFileContainingSymbol(SERVICE).CopyToProto(file)
    assert file.package == "inference"
    assert pb.DESCRIPTOR.package == "upwell.rpc.oip.v2"
    with pytest.raises(KeyError):
        service_pool().FindMessageTypeByName("upwell.rpc.oip.v2.ModelInferRequest")
