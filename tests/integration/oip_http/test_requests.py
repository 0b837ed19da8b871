"""Requests as people and programs send them, and every kind of answer."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.integration.oip_http.harness import (
    BODY,
    INFER,
    TIMEOUT_S,
    PictureModel,
    Serve,
    ask,
    dial,
    read_answer,
)
from upwell.shared import errors
from upwell.shared.errors import Refused
from upwell.shared.oip.http.server.server import RunningHttpServer

JPEG = b"\xff\xd8\xff\xe0 not really \xff\xd9"


def test_curl_sends_json_and_a_picture_as_it_lies_in_a_file(
    server: RunningHttpServer, fake: PictureModel, tmp_path: Path
) -> None:
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("there is no curl here")
    picture = tmp_path / "cat.jpg"
    picture.write_bytes(JPEG * 50_000)  # large enough for curl to ask first whether it may send
    url = f"http://{server.addresses[0]}/v2/models"
    plain = [curl, "--silent", "--show-error", "--fail", "--noproxy", "*", "--max-time", "10"]
    sent = ["-H", "Content-Type: image/jpeg", "--data-binary", f"@{picture}"]
    for arguments in (["-d", BODY.decode(), f"{url}/echo/infer"], [*sent, f"{url}/cats/infer"]):
        done = subprocess.run([*plain, *arguments], capture_output=True, check=True)
        assert json.loads(done.stdout)["outputs"]
    assert fake.requests[0].inputs["fp32"].tolist() == [1.0, 2.5]
    assert fake.requests[1].inputs["image"].tolist() == [picture.read_bytes()]


def test_a_picture_brings_tags_deadline_and_id_as_headers_and_gets_facts_as_headers(
    server: RunningHttpServer, fake: PictureModel
) -> None:
    headers = {
        "Content-Type": "image/png; q=1", "Upwell-Tag-Camera": "dock é".encode().decode("latin-1"),
        "Upwell-Timeout-Ms": "1e6", "Upwell-Id": "a-1",
    }  # fmt: skip
    answer = ask(server, "POST", "/v2/models/cats/infer", JPEG, headers)
    assert answer.status == 200
    assert fake.requests[0].parameters == {"upwell.tag.camera": "dock é"}
    assert fake.requests[0].id == answer.value["id"] == "a-1"
    assert 900 < fake.calls[0].deadline_s - time.monotonic() < 1000
    assert answer.headers["Upwell-Route"] == "edge"
    assert answer.headers["Upwell-Edge-Ms"] == "1.5"
    assert answer.headers["Upwell-Degraded"] == "false"
    assert "Upwell-Reason" not in answer.headers  # its text would end the header
    assert answer.value["parameters"]["upwell.reason"] == "a\r\nb"


def test_a_raw_tensor_needs_a_shape_that_its_size_decides(server: RunningHttpServer, fake: PictureModel) -> None:
    octets = {"Content-Type": "application/octet-stream"}
    rows = np.arange(6, dtype=np.float32)
    assert ask(server, "POST", "/v2/models/rows/infer", rows.tobytes(), octets).status == 200
    assert fake.requests[0].inputs["x"].tolist() == [[0, 1, 2], [3, 4, 5]]
    for model, body, headers, what in (
        ("rows", b"12345", octets, "a multiple of 12 bytes"),
        ("rows", b"", octets, "a multiple of 12 bytes"),
        ("rows", JPEG, {"Content-Type": "image/jpeg"}, "not pictures"),
        ("echo", JPEG, octets, "has 14"),
    ):
        answer = ask(server, "POST", f"/v2/models/{model}/infer", body, headers)
        assert (answer.status, what in answer.value["error"]) == (400, True), answer


def test_triton_s_raw_request_is_answered_in_binary(server: RunningHttpServer) -> None:
    headers = {"Inference-Header-Content-Length": "0", "Content-Type": "application/octet-stream"}
    answer = ask(server, "POST", "/v2/models/rows/infer", np.ones(3, np.float32).tobytes(), headers)
    size = int(answer.headers["Inference-Header-Content-Length"])
    assert json.loads(answer.body[:size])["outputs"][0]["parameters"] == {"binary_data_size": 12}
    assert answer.body[size:] == np.ones(3, np.float32).tobytes()


@pytest.mark.parametrize("binary", [True, False])
def test_triton_s_own_client_is_served(server: RunningHttpServer, binary: bool) -> None:
    triton = pytest.importorskip("tritonclient.http", exc_type=ImportError)
    with triton.InferenceServerClient(server.addresses[0]) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("echo")
        assert not client.is_model_ready("no-such-model")
        assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
        assert client.get_model_metadata("echo", "1")["versions"] == ["1"]
        inputs = []
        arrays = {"fp32": np.random.default_rng(1).random((3, 224, 224), np.float32)[:, :16, :16]}
        arrays["bytes"] = np.array([b"a", b"\xc3\xa9"], np.object_)
        for name, array in arrays.items():
            inputs.append(triton.InferInput(name, list(array.shape), name.upper()))
            inputs[-1].set_data_from_numpy(array, binary_data=binary)
        outputs = [triton.InferRequestedOutput(name, binary_data=binary) for name in arrays]
        for wanted in (outputs, None):
            result = client.infer("echo", inputs, outputs=wanted, request_id="a", timeout=5_000_000)
            assert result.get_response()["id"] == "a"
            np.testing.assert_array_equal(result.as_numpy("fp32"), arrays["fp32"])
        with pytest.raises(Exception, match="no model 'no-such-model'"):
            client.infer("no-such-model", inputs)


def test_a_connection_is_kept_for_the_next_request(server: RunningHttpServer) -> None:
    with closing(http.client.HTTPConnection(server.addresses[0], timeout=TIMEOUT_S)) as connection:
        connection.connect()
        first = connection.sock.getsockname()
        for path, status in (("/v2", 200), ("/v2/models/none", 404), ("/v2/models/echo/infer", 405), ("/v2", 200)):
            connection.request("GET", path)
            assert read_answer(connection.getresponse()).status == status
            assert connection.sock is not None
            assert connection.sock.getsockname() == first


def test_requests_sent_at_once_are_answered_in_their_order(server: RunningHttpServer) -> None:
    with dial(server) as connection:
        get = b"GET %s HTTP/1.1\r\nHost: a\r\n%s\r\n"
        connection.sendall(get % (b"/v2/health/live", b"") + get % (b"/v2", b"Connection: close\r\n"))
        with connection.makefile("rb") as file:
            answer = file.read()
    assert answer.index(b'{"live":true}') < answer.index(b'"name":"fake"')


def test_a_body_may_come_in_chunks(server: RunningHttpServer, fake: PictureModel) -> None:
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (BODY[:7], BODY[7:]))
    with dial(server) as connection:
        head = f"POST {INFER} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        connection.sendall(head.encode() + chunks + b"0\r\n\r\n")
        response = http.client.HTTPResponse(connection)
        response.begin()
        assert read_answer(response).status == 200
    assert fake.requests[0].inputs["fp32"].tolist() == [1.0, 2.5]


def test_head_is_get_without_its_body(server: RunningHttpServer) -> None:
    head, get = ask(server, "HEAD", "/v2"), ask(server, "GET", "/v2")
    assert (head.status, head.body) == (200, b"")
    assert int(head.headers["Content-Length"]) == len(get.body)


def test_not_ready_is_said_with_a_status(server: RunningHttpServer, fake: PictureModel) -> None:
    fake.is_ready = False
    assert ask(server, "GET", "/v2/health/live").status == 200
    assert ask(server, "GET", "/v2/health/ready").status == 503
    assert ask(server, "GET", "/v2/models/echo/versions/1/ready").status == 503
    assert ask(server, "GET", "/v2/models/none/ready").status == 404


@pytest.mark.parametrize(
    ("failure", "status", "name"),
    [
        (errors.InvalidRequest("x"), 400, "INVALID_ARGUMENT"),
        (errors.ModelNotFound("x"), 404, "NOT_FOUND"),
        (errors.Refused("x"), 429, "RESOURCE_EXHAUSTED"),
        (errors.Superseded("x"), 409, "ABORTED"),
        (errors.NoAllowedRoute("x"), 400, "FAILED_PRECONDITION"),
        (errors.DeadlineExceeded("x"), 504, "DEADLINE_EXCEEDED"),
        (errors.Unavailable("x"), 503, "UNAVAILABLE"),
        (errors.CallerLeft("x"), 499, "CANCELLED"),
        (errors.ModelFailed("x"), 500, "INTERNAL"),
        (KeyError("secret"), 500, "INTERNAL"),
    ],
)
def test_each_error_has_its_status_and_nothing_of_our_insides(
    serve: Serve, failure: Exception, status: int, name: str
) -> None:
    answer = ask(serve(dataplane=PictureModel(failure=failure)), "POST", INFER, BODY)
    assert (answer.status, answer.headers["Upwell-Status"]) == (status, name)
    assert set(answer.value) == {"error"}
    assert b"secret" not in answer.body
    assert ("Retry-After" in answer.headers) is (status in (429, 503))


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/", {}, 404),
        ("GET", "/v2/models", {}, 404),
        ("GET", "/v2/models/echo/versions/1/infer/more", {}, 404),
        ("GET", "/v2/models/%2F..%2Fetc", {}, 404),
        ("GET", "/v2/models/%ff", {}, 400),
        ("GET", INFER, {}, 405),
        ("DELETE", "/v2", {}, 405),
        ("POST", INFER, {"Content-Type": "text/plain"}, 415),
        ("POST", INFER, {"Content-Encoding": "br"}, 415),
        ("POST", INFER, {"Upwell-Timeout-Ms": "soon"}, 400),
        ("POST", INFER, {"Upwell-Timeout-Ms": "-1"}, 400),
        ("POST", INFER, {"Upwell-Timeout-Ms": "inf"}, 400),
        ("POST", INFER, {"Inference-Header-Content-Length": "9999"}, 400),
        ("POST", INFER, {"Inference-Header-Content-Length": "-1"}, 400),
        ("POST", INFER, {"Sec-Fetch-Site": "cross-site"}, 403),
    ],
)
def test_what_http_itself_refuses(
    server: RunningHttpServer, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    answer = ask(server, method, path, BODY if method == "POST" else None, headers)
    assert answer.status == status
    assert answer.value["error"]


def test_a_call_too_many_is_refused_at_once_and_probes_still_get_through(serve: Serve, fake: PictureModel) -> None:
    server = serve(max_workers=2)
    fake.hold()
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(ask, server, "POST", INFER, BODY) for _ in range(2)]
        assert fake.arrived(2, TIMEOUT_S)
        answer = ask(server, "POST", INFER, BODY)
        assert (answer.status, answer.headers["Retry-After"]) == (429, "1")
        assert ask(server, "GET", "/v2/health/ready").status == 200
        fake.release()
        assert [one.result().status for one in waiting] == [200, 200]
    assert ask(server, "POST", INFER, BODY).status == 200


def test_the_deadline_ends_the_wait_by_header_and_by_triton_s_parameter(
    server: RunningHttpServer, fake: PictureModel
) -> None:
    fake.hold()
    message = {**json.loads(BODY), "parameters": {"timeout": 20_000}}
    for body, headers in ((BODY, {"Upwell-Timeout-Ms": "20"}), (json.dumps(message).encode(), {})):
        assert ask(server, "POST", INFER, body, headers).status == 504


@contextmanager
def asking(server: RunningHttpServer, fake: PictureModel) -> Iterator[socket.socket]:
    """A connection whose request is being answered; it is closed after the block."""
    with dial(server) as connection:
        connection.sendall(f"POST {INFER} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(BODY)}\r\n\r\n".encode() + BODY)
        assert fake.arrived(1, TIMEOUT_S)
        yield connection


def test_work_is_dropped_when_the_caller_leaves(server: RunningHttpServer, fake: PictureModel) -> None:
    fake.hold()
    with asking(server, fake):
        assert not fake.calls[0].cancelled.is_set()
    assert fake.calls[0].cancelled.wait(TIMEOUT_S)


def test_a_unix_socket_is_served_and_removed(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    server = serve(f"unix:{path}")
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.sendall(b"GET /v2/health/live HTTP/1.0\r\n\r\n")
        assert connection.makefile("rb").read().endswith(b'{"live":true}')
    server.stop(0)
    assert not path.exists()


def test_refused_is_the_catalogue_s(server: RunningHttpServer, fake: PictureModel) -> None:
    fake.failure = Refused("the queue is full")
    assert ask(server, "POST", INFER, BODY).value == {"error": "the queue is full"}


def test_an_inference_that_lasts_where_it_was_read_keeps_no_other_client_waiting(
    serve: Serve, fake: PictureModel
) -> None:
    """Of those at work there is one, which says nothing of its waiting."""
    server = serve(at_work=1)
    fake.hold()
    with asking(server, fake) as connection:
        assert [ask(server, "GET", "/v2/health/live").status for _ in range(5)] == [200] * 5
        fake.release()
        response = http.client.HTTPResponse(connection)
        response.begin()
        assert read_answer(response).status == 200


def test_a_client_that_leaves_while_it_is_answered_where_it_was_read_is_noticed(
    serve: Serve, fake: PictureModel
) -> None:
    server = serve(at_work=1)
    fake.hold()
    with asking(server, fake):
        pass
    assert fake.calls[0].cancelled.wait(TIMEOUT_S)
