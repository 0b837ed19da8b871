"""Cases home by way of a real fleet service: kept by it, or put to object storage by addresses that it signs."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.faults.certificates import Authority
from tests.faults.oracles import EDGE_BUNDLE, picture, pictures
from tests.faults.scene import until
from tests.fleet_service import FakeDevice, Service, service
from tests.integration.agent.kept import EASY
from tests.s3_server import KEY_ID, REGION, SECRET, ObjectStorage, object_storage
from upwell.edge.case_collection.case_delivery import CaseAway, CaseRefused
from upwell.edge.case_collection.case_file_encryption import unpack
from upwell.edge.case_collection.cases_section import CasesSection
from upwell.edge.fleet import case_upload
from upwell.edge.fleet.case_upload import FleetHome, StorageHome
from upwell.edge.server.agent_assembly import embedded_agent
from upwell.edge.server.agent_core import AgentCore
from upwell.fleet.uploaded_cases import Credentials, ObjectRequest, read_credentials, sign_url
from upwell.shared.config.security import ClientSecurity, TlsFiles
from upwell.shared.errors import ConfigError
from upwell.shared.oip.http.client.exchange import HttpsCaller
from upwell.tools.cases.case_source import CaseFolder

ID = "0123456789abcdef" * 2
BODY = b"x" * 5000
SLOWLY = functools.partial(pytest.param, marks=pytest.mark.slow)


@contextlib.contextmanager
def agent_of(folder: Path, fleet: Service, cases: dict[str, Any], **policy: Any) -> Iterator[AgentCore]:
    """An agent of that fleet that keeps every row; it looks for new cases each second."""
    folder.mkdir(exist_ok=True)
    if not (folder / "token").exists():
        (folder / "token").write_text(fleet.enrolment_token())
    section = {"endpoint": fleet.url, "ca": str(fleet.ca), "enrol_token_file": "token", "every": "1s"}
    config = {
        "version": 1, "policy": "policy.yaml", "fleet": section,
        "agent": {"state_dir": "state", "cases": {"every": "1s", **cases}},
        "models": {"digits": {"edge": {"bundle": str(EDGE_BUNDLE), "runtime": "onnx"}}},
    }  # fmt: skip
    defaults = {**EASY, "collect": {"random": 1.0}}
    (folder / "policy.yaml").write_text(json.dumps({"version": 1, "defaults": defaults, **policy}))
    (folder / "agent.yaml").write_text(json.dumps(config))
    with embedded_agent(folder / "agent.yaml") as agent:
        yield agent


def ask(agent: AgentCore, index: int, **tags: str) -> None:
    agent.infer("digits", {"image": pictures([index])}, tags=tags)


def sent(agent: AgentCore, became: str = "sent") -> float:
    return agent.metrics.registry.get_sample_value("upwell_cases_home_total", {"became": became}) or 0.0


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStorage]:
    with object_storage(tmp_path_factory.mktemp("s3")) as running:
        running.call("PUT", "/kept")
        yield running


def bucket(folder: Path, address: str, **more: Any) -> dict[str, Any]:
    """The section of fleet.yaml, with the storage's own credentials."""
    (folder / "credentials").write_text(f"[default]\naws_access_key_id={KEY_ID}\naws_secret_access_key = {SECRET}\n")
    file = folder / "credentials"
    return {"bucket": {"url": f"https://{address}/kept", "region": REGION, "credentials_file": file, **more}}


def test_an_address_is_signed_as_amazon_publishes_it() -> None:
    """The example of "Authenticating Requests: Using Query Parameters"."""
    keys = Credentials("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
    request = ObjectRequest("GET", "https://examplebucket.s3.amazonaws.com/test.txt")
    at = datetime(2013, 5, 24, tzinfo=timezone.utc)
    url = sign_url(request, keys, "us-east-1", at=at, expires_s=86400)
    assert url.endswith("&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404")
    assert url.startswith("https://examplebucket.s3.amazonaws.com/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256&")
    assert "CYEXAMPLEKEY" not in repr(keys)


def test_credentials_come_from_a_file_or_the_environment_and_are_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "credentials"
    path.write_text("[default]\naws_access_key_id = A\naws_secret_access_key = b%c\naws_session_token = d\n")
    assert read_credentials(path, "default") == Credentials("A", "b%c", "d")
    path.write_text("[default]\naws_access_key_id = A\nsecret-typo: hidden\n  aws_secret")
    for profile in ("default", "other"):
        with pytest.raises(ConfigError, match=rf"expected \[{profile}\]") as raised:
            read_credentials(path, profile)
        assert "hidden" not in str(raised.value)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        read_credentials(None, "default")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "A")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    assert read_credentials(None, "default") == Credentials("A", "b")


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({}, "one of"), ({"to": "x", "fleet": True}, "one of"), ({"storage": "http://s3.example.com/b"}, "https://"),
        ({"fleet": True, "storage_ca": "ca.pem"}, "needs"), ({"storage": "https://u:p@s3/b"}, "cannot be read"),
    ],
)  # fmt: skip
def test_cases_have_one_home(section: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        CasesSection.model_validate(section)


def test_cases_come_home_into_the_folder_of_the_fleet_service(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    deny = [{"name": "private", "match": {"tags": {"privacy": "device"}}, "egress": "deny"}]
    spare = [{"name": "spared", "match": {"tags": {"spare": "yes"}}, "collect": False}]
    with service(tmp_path, poll="1s", cases={"folder": kept}) as fleet:
        with agent_of(tmp_path / "one", fleet, {"fleet": True}, rules=[*deny, *spare]) as agent:
            ask(agent, 1, camera="dock")
            ask(agent, 2, privacy="device")
            ask(agent, 3, spare="yes")
            ask(agent, 4)
            until(lambda: sent(agent) == 2, 30.0)
        (device,) = fleet.get("/devices")["devices"]
        files = sorted((kept / device["id"]).iterdir())
        assert len(files) == 2
        assert [facts.tags for facts in CaseFolder(kept).facts()] == [{"camera": "dock"}, {}]
        with CaseFolder(kept).reading() as read:
            assert read(files[0].stem).pictures()["image"] in (picture(1), picture(4))
        (tmp_path / "one/state/cases-home.json").unlink()  # as if the receipts had been lost
        with agent_of(tmp_path / "one", fleet, {"fleet": True}) as agent:
            until(lambda: sent(agent) >= 2, 30.0)
        assert sorted((kept / device["id"]).iterdir()) == files


def test_cases_come_home_into_object_storage_by_signed_addresses(
    tmp_path: Path, storage: ObjectStorage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    cases = {"storage": f"https://{storage.address}/kept", "storage_ca": str(storage.ca)}
    section = bucket(tmp_path, storage.address)
    with service(tmp_path, poll="1s", cases=section) as fleet, agent_of(tmp_path / "one", fleet, cases) as agent:
        ask(agent, 1, camera="dock")
        ask(agent, 2)
        until(lambda: sent(agent) == 2, 30.0)
        (device,) = fleet.get("/devices")["devices"]
        names = [name for name in storage.names("kept") if name.startswith(device["id"])]
    assert len(names) == 2
    cases_there = [unpack(storage.call("GET", f"/kept/{name}"), Path(name).stem, None) for name in names]
    assert {case.pictures()["image"] for case in cases_there} == {picture(1), picture(2)}
    assert SECRET not in caplog.text
    assert "X-Amz" not in caplog.text
    assert sent(agent, "failed") == 0


@contextlib.contextmanager
def device_of(fleet: Service) -> Iterator[FakeDevice]:
    """A device that has enrolled."""
    device = fleet.enrolled()
    yield device
    shutil.rmtree(device.folder)


def caller_of(fleet: Service, device: FakeDevice) -> HttpsCaller:
    return HttpsCaller(fleet.url, ClientSecurity(device.files))


def test_the_service_refuses_what_is_no_case_of_a_device(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with (
        service(tmp_path, cases={"folder": kept, "max_case": "8000B", "limit": "12000B"}) as fleet,
        device_of(fleet) as one,
        device_of(fleet) as two,
    ):
        path = f"/v1/cases/{ID}"
        assert fleet.send("PUT", path, BODY).status == 401
        call = caller_of(fleet, one).call
        assert call("PUT", "/v1/cases/..%2f..%2fx", body=BODY).status in (400, 404)
        assert call("PUT", f"/v1/cases/{ID[:-1]}Z", body=BODY).status == 400
        assert b"8000" in call("PUT", path, body=b"x" * 8001).body
        assert call("POST", f"{path}/url?size_bytes=5").status == 404
        assert not kept.exists() or not list(kept.rglob("*.case"))
        assert [caller_of(fleet, each).call("PUT", path, body=BODY).status for each in (one, two)] == [200, 200]
        assert len(list(kept.rglob(f"{ID}.case"))) == 2  # one name, two devices
        full = call("PUT", f"/v1/cases/{'f' * 32}", body=BODY)
        assert (full.status, full.retry_after_s) == (507, 30.0)
        with pytest.raises(CaseAway, match="full") as away:
            FleetHome(lambda: caller_of(fleet, one)).ready("f" * 32, 1)(BODY)
        assert not away.value.is_unsent
        with pytest.raises(CaseRefused, match="max_case"):
            FleetHome(lambda: caller_of(fleet, one)).ready(ID, 1)(b"x" * 8001)
        with pytest.raises(CaseAway, match="no object storage"):
            StorageHome("https://127.0.0.1/kept", TlsFiles(), lambda: caller_of(fleet, one)).ready(ID, 1)
        devices = fleet.get("/devices")["devices"]
        for each in devices:
            fleet.do("POST", f"/devices/{each['id']}/revoke")
        assert call("PUT", path, body=BODY).status == 401


def test_of_a_case_for_a_service_that_is_not_there_nothing_has_left() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"https://127.0.0.1:{taken.getsockname()[1]}"
    nobody = HttpsCaller(address, ClientSecurity())
    with pytest.raises(CaseAway) as error:
        FleetHome(lambda: nobody).ready(ID, 1)(BODY)
    assert error.value.is_unsent


def test_a_case_that_is_cut_on_its_way_leaves_nothing(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with service(tmp_path, cases={"folder": kept}) as fleet, device_of(fleet) as device:
        context = ssl.create_default_context(cafile=str(fleet.ca))
        context.load_cert_chain(device.files.cert or "", device.files.key)
        host, port = fleet.url.removeprefix("https://").split(":")
        with socket.create_connection((host, int(port))) as plain:
            cut = context.wrap_socket(plain, server_hostname=host)
            head = f"PUT /v1/cases/{ID} HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n"
            cut.sendall(head.encode() + BODY[:2000])
            cut.close()
        assert caller_of(fleet, device).call("PUT", f"/v1/cases/{'e' * 32}", body=BODY).status == 200
        assert [path.name for path in kept.rglob("*") if path.is_file()] == [f"{'e' * 32}.case"]


Answer = Callable[[BaseHTTPRequestHandler], None]


@contextlib.contextmanager
def scripted(folder: Path, answer: Answer) -> Iterator[tuple[str, Path]]:
    """Storage that does what is wrong: its address and authority."""

    class Serving(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            with contextlib.suppress(OSError):
                answer(self)

        def log_message(self, format: str, *args: object) -> None:
            pass

    folder.mkdir()
    authority = Authority(folder)
    pair = authority.sign("storage")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Serving)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}", authority.ca
    finally:
        server.shutdown()
        server.server_close()


def redirect(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(307)
    handler.send_header("Location", "https://elsewhere.example/kept")
    handler.send_header("Content-Length", "0")
    handler.end_headers()


def cut(handler: BaseHTTPRequestHandler) -> None:
    handler.rfile.read(100)
    handler.connection.close()


def hang(handler: BaseHTTPRequestHandler) -> None:
    time.sleep(3)


def too_large(handler: BaseHTTPRequestHandler) -> None:
    handler.rfile.read(len(BODY))
    body = b"<Error><Code>EntityTooLarge</Code></Error>"
    handler.send_response(400)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (redirect, CaseAway, "redirects are not followed"), SLOWLY(cut, CaseAway, "UNAVAILABLE"),
        SLOWLY(hang, CaseAway, "DEADLINE_EXCEEDED"), SLOWLY(too_large, CaseRefused, "EntityTooLarge"),
    ],
)  # fmt: skip
def test_storage_that_misbehaves_costs_a_later_try(
    tmp_path: Path, answer: Answer, error: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if answer is hang:
        monkeypatch.setattr(case_upload, "case_upload_s", lambda _: 0.5)
    with (
        scripted(tmp_path / "storage", answer) as (address, ca),
        service(tmp_path, cases=bucket(tmp_path, address)) as fleet,
        device_of(fleet) as device,
    ):
        home = StorageHome(f"https://{address}/kept", TlsFiles(ca=ca), lambda: caller_of(fleet, device))
        put = home.ready(ID, len(BODY))
        with pytest.raises(error, match=words):
            put(BODY)


@pytest.mark.slow
def test_a_signed_address_holds_for_one_case_of_one_size_and_for_its_time(
    tmp_path: Path, storage: ObjectStorage
) -> None:
    with (
        service(tmp_path, cases=bucket(tmp_path, storage.address, expires="2s")) as fleet,
        device_of(fleet) as device,
    ):
        home = StorageHome(f"https://{storage.address}/kept", TlsFiles(ca=storage.ca), lambda: caller_of(fleet, device))
        put = home.ready(ID, len(BODY))
        with pytest.raises(CaseAway, match="403 SignatureDoesNotMatch"):
            put(BODY + b"more")
        home.ready(ID, len(BODY))(BODY)
        expired = home.ready("f" * 32, len(BODY))
        time.sleep(3.1)  # past its time by its own clock, which counts whole seconds
        with pytest.raises(CaseAway, match="403 AccessDenied"):
            expired(BODY)
        assert [name for name in storage.names("kept") if name.endswith(f"{'f' * 32}.case")] == []
        (tmp_path / "credentials").write_text("[default]\naws_access_key_id=other\naws_secret_access_key=x\n")
        with pytest.raises(CaseAway, match="InvalidAccessKeyId"):
            home.ready(ID, len(BODY))(BODY)
        (tmp_path / "credentials").write_text("broken")
        with pytest.raises(CaseAway, match="503"):
            home.ready(ID, len(BODY))


@pytest.mark.parametrize(
    "storage_url", ["https://s3.example.com/kept", SLOWLY("https://127.0.0.1:1/kep"), SLOWLY("https://127.0.0.1:1")]
)
def test_the_service_opens_no_place_that_the_device_does_not_name(tmp_path: Path, storage_url: str) -> None:
    with service(tmp_path, cases=bucket(tmp_path, "127.0.0.1:1")) as fleet, device_of(fleet) as device:
        home = StorageHome(storage_url, TlsFiles(), lambda: caller_of(fleet, device))
        if storage_url == "https://127.0.0.1:1":  # below it, so it may be called; nobody is there
            with pytest.raises(CaseAway, match="UNAVAILABLE"):
                home.ready(ID, 1)(b"x")
            return
        with pytest.raises(CaseAway, match="not below") as raised:
            home.ready(ID, 1)
        assert "X-Amz" not in str(raised.value)


def test_no_address_is_signed_for_more_than_a_case_may_have_however_its_size_is_written(tmp_path: Path) -> None:
    section = bucket(tmp_path, "127.0.0.1:1") | {"max_case": "8000B"}
    with service(tmp_path, cases=section) as fleet, device_of(fleet) as one:
        call = caller_of(fleet, one).call
        for size, status in (("8000", 200), ("8001", 413), ("0" * 19 + "8001", 413), ("9" * 5000, 413)):
            assert call("POST", f"/v1/cases/{ID}/url?size_bytes={size}").status == status
