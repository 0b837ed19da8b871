// One request over plain gRPC, without Triton's client library. The messages are generated from the protocol's file, with
// the package name that servers expect. With Debian's g++, pkg-config, libgrpc++-dev, libprotobuf-dev and
// protobuf-compiler-grpc:
//
//   sed 's/^package .*/package inference;/' protos/upwell/rpc/oip/v2/open_inference_grpc.proto > open_inference.proto
//   protoc --cpp_out=. --grpc_out=. --plugin=protoc-gen-grpc=$(which grpc_cpp_plugin) open_inference.proto
//   g++ -std=c++17 -I. client.cpp open_inference*.cc -o client $(pkg-config --libs grpc++ protobuf)
//   ./client 127.0.0.1:8001 linear x 8
#include <chrono>
#include <cstring>
#include <iostream>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "open_inference.grpc.pb.h"

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "usage: client HOST:PORT MODEL INPUT FEATURES\n";
    return 2;
  }
  auto channel = grpc::CreateChannel(argv[1], grpc::InsecureChannelCredentials());
  auto stub = inference::GRPCInferenceService::NewStub(channel);

  std::vector<float> row(std::stoul(argv[4]), 1.0f);
  inference::ModelInferRequest request;
  request.set_model_name(argv[2]);
  auto* input = request.add_inputs();
  input->set_name(argv[3]);
  input->set_datatype("FP32");
  input->add_shape(1);
  input->add_shape(static_cast<int64_t>(row.size()));
  request.add_raw_input_contents(row.data(), row.size() * sizeof(float));  // little-endian

  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
  inference::ModelInferResponse response;
  grpc::Status status = stub->ModelInfer(&context, request, &response);
  if (!status.ok()) {
    std::cerr << "failed: " << status.error_message() << "\n";
    return 1;
  }
  for (int i = 0; i < response.outputs_size(); ++i) {
    const std::string& raw = response.raw_output_contents(i);
    std::vector<float> values(raw.size() / sizeof(float));
    std::memcpy(values.data(), raw.data(), raw.size());
    std::cout << response.outputs(i).name();
    for (float value : values) std::cout << " " << value;
    std::cout << "\n";
  }
}
