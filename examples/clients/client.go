// One request over plain gRPC in Go. The messages are generated from the protocol's file, with the package name that
// servers expect. With Debian's golang-google-grpc-dev and protoc-gen-go-1-3:
//
//   sed 's/^package .*/package inference;/' protos/upwell/rpc/oip/v2/open_inference_grpc.proto > open_inference.proto
//   mkdir -p src/client/inference && protoc --go_out=plugins=grpc:src/client/inference open_inference.proto
//   GO111MODULE=off GOPATH="$PWD:/usr/share/gocode" GOCACHE="$PWD/cache" go build -o client client.go
//   ./client 127.0.0.1:8001 linear x 8
//
// With modules, `go get google.golang.org/grpc` replaces GOPATH, and protoc-gen-go-grpc replaces plugins=grpc.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"time"

	"client/inference"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

func main() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: client HOST:PORT MODEL INPUT FEATURES")
		os.Exit(2)
	}
	if err := infer(os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
		fmt.Fprintln(os.Stderr, "failed:", status.Convert(err).Message())
		os.Exit(1)
	}
}

func infer(address, model, input, features string) error {
	size, err := strconv.Atoi(features)
	if err != nil {
		return err
	}
	row := make([]float32, size)
	for i := range row {
		row[i] = 1
	}
	var raw bytes.Buffer
	if err := binary.Write(&raw, binary.LittleEndian, row); err != nil {
		return err
	}
	connection, err := grpc.Dial(address, grpc.WithInsecure())
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second) // the deadline travels with the call
	defer cancel()
	response, err := inference.NewGRPCInferenceServiceClient(connection).ModelInfer(ctx, &inference.ModelInferRequest{
		ModelName: model,
		Inputs: []*inference.ModelInferRequest_InferInputTensor{
			{Name: input, Datatype: "FP32", Shape: []int64{1, int64(size)}},
		},
		RawInputContents: [][]byte{raw.Bytes()},
	})
	if err != nil {
		return err
	}
	for i, output := range response.Outputs {
		values := make([]float32, len(response.RawOutputContents[i])/4)
		if err := binary.Read(bytes.NewReader(response.RawOutputContents[i]), binary.LittleEndian, values); err != nil {
			return err
		}
		fmt.Print(output.Name)
		for _, value := range values {
			fmt.Print(" ", value)
		}
		fmt.Println()
	}
	return nil
}
