"""Descriptors for gRPC reflection, under the names the protocol publishes."""

from __future__ import annotations

from google.protobuf import text_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool

from upwell.rpc.oip.v2 import open_inference_grpc_pb2 as pb

PUBLISHED_PACKAGE = "inference"


def service_pool() -> DescriptorPool:
    """A pool of its own that describes `inference.GRPCInferenceService`, for a reflection servicer.

    Our generated messages live in another package, so that they can share a process with other modules made
    from the same protocol; tools such as grpcurl look for the service under its path on the wire. A pool apart
    from the process-wide one lets both be.
    """
    file = FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(file)
    text = text_format.MessageToString(file)
    pool = DescriptorPool()
    pool.Add(text_format.Parse(text.replace(file.package, PUBLISHED_PACKAGE), FileDescriptorProto()))
    return pool
