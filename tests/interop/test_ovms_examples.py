"""The calls of OpenVINO Model Server's samples for KServe's protocol, against the real service.

They are `client/python/kserve-api/samples` of openvinotoolkit/model_server: what each sends and reads is here, in
other words. Their model takes FP32 pixels of NHWC or encoded pictures under one name, and answers scores of classes.
"""

import http.client
import io
import json
import queue
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http
from onnx import helper
from PIL import Image
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from tests.integration.cloud.serving import Service, serving
from tests.unit.models_for_tests import save, tensor
from upwell.shared.tensors import Array

COLOURS = ((250, 10, 10), (10, 250, 10), (10, 10, 250))
"""The classes: a picture is of the one whose channel is brightest."""
SIDE = 8
DESCRIPTION = """
version: 1
signature:
  inputs: {"0": {kind: image}}
  outputs: {"1463": {kind: tensor}}
pre:
  - decode: {from: "0"}
  - resize: {from: "0", to: [8, 8], fit: stretch}
  - normalize: {from: "0", scale: 1.0}
post: []
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    root = tmp_path_factory.mktemp("ovms")
    for name in ("resnet", "resnet-encoded", "texts"):
        folder = root / "models" / name / "1"
        folder.mkdir(parents=True)
        if name == "texts":
            words = [tensor("words", ["rows"], "BYTES")], [tensor("same", ["rows"], "BYTES")]
            save(folder / "model.onnx", [helper.make_node("Identity", ["words"], ["same"])], *words)
            continue
        nodes = [helper.make_node("ReduceMean", ["0"], ["1463"], axes=[1, 2], keepdims=0)]
        takes, gives = tensor("0", ["rows", SIDE, SIDE, 3]), tensor("1463", ["rows", 3])
        save(folder / "model.onnx", nodes, [takes], [gives])
        if name == "resnet-encoded":
            (folder / "model.yaml").write_text(DESCRIPTION)
    (root / "cloud.yaml").write_text(
        "version: 1\nserve: {listen: ['127.0.0.1:0'], listen_http: ['127.0.0.1:0'], models: models}\n"
    )
    with serving("-c", root / "cloud.yaml") as running:
        yield running


@pytest.fixture(scope="module")
def http_address(service: Service) -> str:
    return next(line.split()[-1] for line in service.lines if line.startswith("HTTP on"))


@pytest.fixture(scope="module")
def stub(service: Service) -> Iterator[Any]:
    with grpc.insecure_channel(service.address) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def pictures() -> Array:
    """[3, 8, 8, 3] FP32, scaled to 0..255 as the samples do."""
    pixels = np.tile(np.array(COLOURS, np.float32)[:, None, None], (1, SIDE, SIDE, 1))
    pixels = pixels - np.min(pixels)
    return (pixels / np.ptp(pixels) * 255).astype(np.float32)


def encoded(format: str) -> list[bytes]:
    files = []
    for colour in COLOURS:
        file = io.BytesIO()
        Image.new("RGB", (40, 30), colour).save(file, format)
        files.append(file.getvalue())
    return files


def test_server_and_model(service: Service, stub: Any, http_address: str) -> None:
    assert stub.ServerLive(service_pb2.ServerLiveRequest()).live
    assert stub.ServerReady(service_pb2.ServerReadyRequest()).ready
    assert stub.ServerMetadata(service_pb2.ServerMetadataRequest()).name == "upwell-cloud"
    assert stub.ModelReady(service_pb2.ModelReadyRequest(name="resnet", version="")).ready
    model = stub.ModelMetadata(service_pb2.ModelMetadataRequest(name="resnet", version=""))
    assert [(one.name, one.datatype, list(one.shape)) for one in model.inputs] == [("0", "FP32", [-1, SIDE, SIDE, 3])]
    web = over_http.InferenceServerClient(http_address)
    assert web.is_server_live()
    assert web.is_server_ready()
    assert web.get_server_metadata()["name"] == "upwell-cloud"
    assert web.is_model_ready("resnet", "")
    assert web.get_model_metadata("resnet", "")["outputs"][0]["name"] == "1463"
    web.close()


@pytest.mark.parametrize("protocol", [over_grpc, over_http])
@pytest.mark.parametrize("rows", [1, 3])
def test_pixels(service: Service, http_address: str, protocol: Any, rows: int) -> None:
    address = service.address if protocol is over_grpc else http_address
    with protocol.InferenceServerClient(url=address, verbose=False) as client:
        found = []
        for first in range(0, 3, rows):
            given = protocol.InferInput("0", pictures()[first : first + rows].shape, "FP32")
            given.set_data_from_numpy(pictures()[first : first + rows])
            answer = client.infer(model_name="resnet", inputs=[given], outputs=[])
            found += list(np.argmax(answer.as_numpy("1463"), axis=1))
    assert found == [0, 1, 2]


def test_pixels_without_waiting_over_grpc(service: Service) -> None:
    done: queue.Queue[tuple[int, Any, Any]] = queue.Queue()
    with over_grpc.InferenceServerClient(url=service.address) as client:
        for row in range(3):
            given = over_grpc.InferInput("0", [1, SIDE, SIDE, 3], "FP32")
            given.set_data_from_numpy(pictures()[row : row + 1])
            client.async_infer(
                model_name="resnet",
                callback=lambda result, error, row=row: done.put((row, result, error)),
                inputs=[given],
                outputs=[],
            )
        answers = [done.get(timeout=10) for _ in range(3)]
    assert [error for _, _, error in answers] == [None] * 3
    assert all(np.argmax(result.as_numpy("1463")) == row for row, result, _ in answers)


def test_pixels_without_waiting_over_http(http_address: str) -> None:
    with over_http.InferenceServerClient(url=http_address, concurrency=10) as client:
        asked = []
        for row in range(3):
            given = over_http.InferInput("0", [1, SIDE, SIDE, 3], "FP32")
            given.set_data_from_numpy(pictures()[row : row + 1])
            asked.append(client.async_infer(model_name="resnet", inputs=[given], outputs=[]))
        assert [int(np.argmax(one.get_result().as_numpy("1463"))) for one in asked] == [0, 1, 2]


@pytest.mark.parametrize("protocol", [over_grpc, over_http])
@pytest.mark.parametrize("format", ["JPEG", "PNG"])
@pytest.mark.parametrize("rows", [1, 3])
def test_encoded_pictures(service: Service, http_address: str, protocol: Any, format: str, rows: int) -> None:
    address = service.address if protocol is over_grpc else http_address
    with protocol.InferenceServerClient(url=address) as client:
        found = []
        for first in range(0, 3, rows):
            given = protocol.InferInput("0", [rows], "BYTES")
            given.set_data_from_numpy(np.array(encoded(format)[first : first + rows], dtype=np.object_))
            answer = client.infer(
                model_name="resnet-encoded", inputs=[given], outputs=[protocol.InferRequestedOutput("1463")]
            )
            found += list(np.argmax(answer.as_numpy("1463"), axis=1))
    assert found == [0, 1, 2]


def test_encoded_pictures_as_contents_of_the_message(stub: Any) -> None:
    for number, picture in enumerate(encoded("JPEG")):
        request = service_pb2.ModelInferRequest(model_name="resnet-encoded")
        given = request.inputs.add(name="0", datatype="BYTES", shape=[1])
        given.contents.bytes_contents.append(picture)
        request.outputs.add(name="1463")
        answer = stub.ModelInfer(request)
        assert np.argmax(np.frombuffer(answer.raw_output_contents[0], np.float32)) == number


def test_pixels_of_fp32_are_refused_where_encoded_pictures_are_taken(service: Service) -> None:
    """Their server takes both under one name; here the model is served a second time, without a description."""
    with over_grpc.InferenceServerClient(url=service.address) as client:
        given = over_grpc.InferInput("0", [3, SIDE, SIDE, 3], "FP32")
        given.set_data_from_numpy(pictures())
        with pytest.raises(InferenceServerException, match="or pixels as UINT8"):
            client.infer(model_name="resnet-encoded", inputs=[given], outputs=[])


@pytest.mark.parametrize("raw", [True, False])
def test_texts(service: Service, stub: Any, raw: bool) -> None:
    words = ["String_123", "", "zebra"]
    if raw:
        with over_grpc.InferenceServerClient(url=service.address) as client:
            given = over_grpc.InferInput("words", [len(words)], "BYTES")
            given.set_data_from_numpy(np.array(words, dtype=bytes))
            answer = client.infer(model_name="texts", inputs=[given], outputs=[]).as_numpy("same")
        assert [one.decode() for one in answer] == words
        return
    request = service_pb2.ModelInferRequest(model_name="texts")
    given = request.inputs.add(name="words", datatype="BYTES", shape=[len(words)])
    given.contents.bytes_contents.extend(word.encode() for word in words)
    request.outputs.add(name="same")
    answer = stub.ModelInfer(request)
    assert answer.raw_output_contents[0].endswith(b"\x05\0\0\0zebra")


def test_pictures_in_the_form_of_its_first_release_are_refused_with_a_reason(http_address: str) -> None:
    """Before tritonclient, `http_infer_binary_resnet.py` sent pictures without lengths, their sizes in one text."""
    picture = encoded("JPEG")[0]
    tensor_header = {"name": "0", "shape": [1], "datatype": "BYTES"}
    header = json.dumps({"inputs": [{**tensor_header, "parameters": {"binary_data_size": str(len(picture))}}]}).encode()
    connection = http.client.HTTPConnection(http_address, timeout=10)
    headers = {"Inference-Header-Content-Length": str(len(header))}
    connection.request("POST", "/v2/models/resnet-encoded/infer", header + picture, headers)
    answer = connection.getresponse()
    assert answer.status == 400
    assert "binary_data_size" in json.loads(answer.read())["error"]
    connection.close()
