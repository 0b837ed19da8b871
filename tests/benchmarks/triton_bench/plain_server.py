"""The least that a Python gRPC server around an ONNX Runtime session can be: `plain_server.py PORT NAME=MODEL...`."""

import sys
from concurrent import futures

import grpc
import numpy as np
import onnxruntime

from upwell.rpc.oip.v2 import open_inference_grpc_pb2 as pb
from upwell.rpc.oip.v2 import open_inference_grpc_pb2_grpc as rpc

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
sessions = {
    name: onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    for name, path in (argument.split("=", 1) for argument in sys.argv[2:])
}


class Plain(rpc.GRPCInferenceServiceServicer):
    """Answers ModelInfer, and nothing else."""

    def ModelInfer(self, request: pb.ModelInferRequest, context: grpc.ServicerContext) -> pb.ModelInferResponse:  # noqa: N802  the protocol's name
        session, asked = sessions[request.model_name], request.inputs[0]
        x = np.frombuffer(request.raw_input_contents[0], np.float32).reshape(asked.shape)
        (y,) = session.run(None, {asked.name: x})
        answer = pb.ModelInferResponse(model_name=request.model_name, id=request.id)
        answer.outputs.add(name=session.get_outputs()[0].name, datatype="FP32", shape=y.shape)
        answer.raw_output_contents.append(y.tobytes())
        return answer


server = grpc.server(futures.ThreadPoolExecutor(2))
rpc.add_GRPCInferenceServiceServicer_to_server(Plain(), server)  # type: ignore[no-untyped-call]  # generated
server.add_insecure_port(f"127.0.0.1:{sys.argv[1]}")
server.start()
server.wait_for_termination()
