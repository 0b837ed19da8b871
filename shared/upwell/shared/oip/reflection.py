"""Descriptors for gRPC reflection, under the names the protocol publishes."""

from __future__ import annotations

from google.protobuf import text_format
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool

from upwell.rpc.oip.v2 import model_repository_pb2
from upwell.rpc.oip.v2 import open_inference_grpc_pb2 as pb
from upwell.shared.oip.repository import METHODS

PUBLISHED_PACKAGE = "inference"


def service_pool(*, with_repository: bool = False) -> DescriptorPool:
    """A pool of its own that describes `inference.GRPCInferenceService`, for a reflection servicer.

    Our generated messages live in another package, so that they can share a process with other modules made
    from the same protocol; tools such as grpcurl look for the service under its path on the wire. A pool apart
    from the process-wide one lets both be. With `with_repository` the service has the methods of the model
    repository extension as well.
    """
    pool = DescriptorPool()
    file = _published(pb.DESCRIPTOR)
    if with_repository:
        extension = _published(model_repository_pb2.DESCRIPTOR)
        pool.Add(extension)
        file.dependency.append(extension.name)
        for name in METHODS:
            message = f".{PUBLISHED_PACKAGE}.{name}"
            file.service[0].method.add(name=name, input_type=f"{message}Request", output_type=f"{message}Response")
    pool.Add(file)
    return pool


def _published(descriptor: FileDescriptor) -> FileDescriptorProto:
    """The description of one of our files, in the published package."""
    file = FileDescriptorProto()
    descriptor.CopyToProto(file)
    text = text_format.MessageToString(file)
    return text_format.Parse(text.replace(file.package, PUBLISHED_PACKAGE), FileDescriptorProto())
