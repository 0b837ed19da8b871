"""Pages of other sites: none may call, but those of the origins that the operator has written."""

import http.client
import json
from collections.abc import Iterator
from contextlib import closing

import pytest
from pydantic import TypeAdapter, ValidationError

from upwell.shared.oip.fake_dataplane import FakeDataplane
from upwell.shared.oip.grpc.server.server import Connections
from upwell.shared.oip.http.server.server import start_http_server
from upwell.shared.oip.server_keys import Origin

SITE = "https://site.example"
BODY = json.dumps({"inputs": [{"name": "fp32", "datatype": "FP32", "shape": [1], "data": [0.5]}]})
INFER = "/v2/models/echo/infer"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = start_http_server(
        FakeDataplane(), ["127.0.0.1:0"], max_workers=2, connections=Connections(origins=(SITE,))
    )
    yield server.addresses[0]
    server.stop(0)


def ask(address: str, method: str, path: str, origin: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    sent = {"Origin": origin, "Sec-Fetch-Site": "cross-site", **{k.replace("_", "-"): v for k, v in headers.items()}}
    with closing(http.client.HTTPConnection(address, timeout=10)) as connection:
        connection.request(method, path, BODY if method == "POST" else None, sent)
        reply = connection.getresponse()
        return reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read()


def test_a_page_of_an_allowed_site_asks_first_and_reads_answers_and_errors(address: str) -> None:
    wanted = "content-type, upwell-tag-camera, x-evil"
    status, told, _ = ask(
        address, "OPTIONS", INFER, SITE, Access_Control_Request_Method="POST", Access_Control_Request_Headers=wanted
    )
    assert (status, told["access-control-allow-origin"], told["vary"]) == (200, SITE, "Origin")
    allowed = told["access-control-allow-headers"].split(", ")
    assert {"authorization", "content-type", "upwell-tag-camera"} <= set(allowed)
    assert "x-evil" not in allowed
    for path, expected in ((INFER, 200), ("/v2/models/none/infer", 404)):
        status, told, body = ask(address, "POST", path, SITE)
        assert (status, told["access-control-allow-origin"]) == (expected, SITE)
        assert ("outputs" if expected == 200 else "error") in json.loads(body)
    assert ask(address, "GET", "/nowhere", SITE)[1]["access-control-allow-origin"] == SITE


@pytest.mark.parametrize(
    "origin", ["https://other.example", "http://site.example", "https://site.example.evil", "null"]
)
@pytest.mark.parametrize("method", ["POST", "OPTIONS"])
def test_others_are_refused_and_told_nothing(address: str, method: str, origin: str) -> None:
    status, told, body = ask(address, method, INFER, origin, Access_Control_Request_Method="POST")
    assert status == 403
    assert not [name for name in told if name.startswith("access-control")]
    assert b"pages of other sites may not call" in body


@pytest.mark.parametrize("text", ["*", "site.example", "https://site.example/", "https://*.example", "HTTPS://A", ""])
def test_an_origin_is_written_whole(text: str) -> None:
    with pytest.raises(ValidationError, match=r"an origin in lower case, such as https://site\.example"):
        TypeAdapter(Origin).validate_python(text)
