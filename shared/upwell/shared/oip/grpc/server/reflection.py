"""Descriptors for gRPC reflection, under the protocol's published names."""

from __future__ import annotations

from google.protobuf import text_format
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool

from upwell.rpc.oip.v2 import (
    model_config_pb2,
    model_repository_pb2,
    model_statistics_pb2,
    model_stream_pb2,
    server_settings_pb2,
)
from upwell.rpc.oip.v2 import open_inference_grpc_pb2 as pb
from upwell.shared.oip.grpc.server.model_stream import METHOD as STREAM_METHOD
from upwell.shared.oip.grpc.server.triton_extensions import INTROSPECTION_METHODS, REPOSITORY_METHODS

PUBLISHED_PACKAGE = "inference"


def service_pool(*, with_extensions: bool = False) -> DescriptorPool:
    """A separate pool that describes `inference.GRPCInferenceService`, for a reflection servicer.

    Our generated messages are in another protobuf package, so that they can share a process with other modules
    generated from the same protocol; tools such as grpcurl look for the service under its path on the wire. A pool
    apart from the process-wide one allows both. With `with_extensions` it includes the methods of Triton's extensions.
    """
    pool = DescriptorPool()
    messages, stream = _published(pb.DESCRIPTOR), _published(model_stream_pb2.DESCRIPTOR)
    # The service gets its own file, since its methods come from several.
    file = FileDescriptorProto(name="grpc_inference_service.proto", package=PUBLISHED_PACKAGE, syntax="proto3")
    service = file.service.add()
    service.CopyFrom(messages.service.pop())
    service.method.add(
        name=STREAM_METHOD,
        input_type=f".{PUBLISHED_PACKAGE}.ModelInferRequest",
        output_type=f".{PUBLISHED_PACKAGE}.ModelStreamInferResponse",
        client_streaming=True,
        server_streaming=True,
    )
    files = [messages, stream]
    if with_extensions:
        modules = (model_repository_pb2, model_config_pb2, model_statistics_pb2, server_settings_pb2)
        files += [_published(module.DESCRIPTOR) for module in modules]
        for name in (*INTROSPECTION_METHODS, *REPOSITORY_METHODS):
            message = f".{PUBLISHED_PACKAGE}.{name}"
            service.method.add(name=name, input_type=f"{message}Request", output_type=f"{message}Response")
    for one in files:
        pool.Add(one)
    file.dependency.extend(one.name for one in files)
    pool.Add(file)
    return pool


def _published(descriptor: FileDescriptor) -> FileDescriptorProto:
    """The description of one of our files, in the published package."""
    file = FileDescriptorProto()
    descriptor.CopyToProto(file)
    text = text_format.MessageToString(file)
    return text_format.Parse(text.replace(file.package, PUBLISHED_PACKAGE), FileDescriptorProto())
