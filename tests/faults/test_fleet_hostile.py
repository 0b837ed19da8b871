"""A hostile fleet service: whatever it answers, the device refuses it, goes on, and says so."""

from __future__ import annotations

import contextlib
import functools
import http.server
import logging
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from upwell.edge.fleet import fleet_poller
from upwell.edge.fleet.device_facts import AgentView, DemandView
from upwell.edge.fleet.fleet_config import FleetSection
from upwell.edge.fleet.fleet_poller import FleetPoller
from upwell.fleet.config import AuthoritySection, FleetServiceSection
from upwell.fleet.enrolment.certificate_authority import Authority, open_authority, read_request
from upwell.fleet.service.server import server_context
from upwell.rpc.opamp.v1 import opamp_pb2
from upwell.shared.errors import InvalidRequest
from upwell.shared.opamp import WISH_FILE, digest_of

Handler = http.server.BaseHTTPRequestHandler
Answer = Callable[[Handler, opamp_pb2.AgentToServer], None]


SLOWLY = functools.partial(pytest.param, marks=pytest.mark.exhaustive)


class Chooser:
    """Takes choices, and keeps to signed releases: 7 is none."""

    sequence, phase, reason = 3, "serving", ""

    def __init__(self) -> None:
        self.chosen: list[int | None] = []

    def choose(self, sequence: int | None, not_before_unix_s: float | None = None, shadow: int | None = None) -> None:
        """Refuse release 7."""
        if sequence == 7:
            raise InvalidRequest("release 7 is not signed")
        self.chosen.append(sequence)

    def status(self) -> Chooser:
        """What runs."""
        return self


class Hostile:
    """A service whose next answers are in the test's hands; what the device said is in `said`."""

    def __init__(self, folder: Path) -> None:
        self.answer: Answer = lambda handler, message: self.reply(handler, message)
        self.said: list[opamp_pb2.AgentToServer] = []
        files = AuthoritySection.model_validate({"cert": folder / "ca.pem", "key": folder / "ca.key"})
        self.authority: Authority = open_authority(files, time.time())
        outer = self

        class Serving(Handler):
            def do_POST(self) -> None:  # noqa: N802  as http.server calls it
                data = self.rfile.read(int(self.headers["Content-Length"]))
                message = opamp_pb2.AgentToServer.FromString(data)
                outer.said.append(message)
                with contextlib.suppress(OSError):
                    outer.answer(self, message)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Serving)
        context = server_context(FleetServiceSection(names=("127.0.0.1",)), self.authority)
        context.verify_mode = ssl.CERT_NONE
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def reply(
        self,
        handler: Handler,
        message: opamp_pb2.AgentToServer,
        change: Callable[[opamp_pb2.ServerToAgent], None] | None = None,
    ) -> None:
        """A fair answer, but for what `change` makes of it."""
        reply = opamp_pb2.ServerToAgent(instance_uid=message.instance_uid)
        csr = message.connection_settings_request.opamp.certificate_request.csr
        if csr:
            certificate = self.authority.sign_device(read_request(csr), "d", time.time(), 86400.0)
            reply.connection_settings.opamp.certificate.cert = certificate.pem
        if change is not None:
            change(reply)
        send(handler, reply.SerializeToString())


def send(handler: Handler, body: bytes, status: int = 200, **headers: str) -> None:
    handler.send_response(status)
    for name, value in {"Content-Length": str(len(body)), **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


def wishing(body: bytes, wish_hash: bytes | None = None) -> Callable[[opamp_pb2.ServerToAgent], None]:
    def change(reply: opamp_pb2.ServerToAgent) -> None:
        reply.remote_config.config.config_map[WISH_FILE].body = body
        reply.remote_config.config_hash = digest_of(body) if wish_hash is None else wish_hash

    return change


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[Hostile]:
    made = Hostile(tmp_path)
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def chooser() -> Chooser:
    return Chooser()


@pytest.fixture
def device(
    hostile: Hostile, chooser: Chooser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FleetPoller]:
    """A device that has enrolled, and polls ten times a second."""
    monkeypatch.setattr(fleet_poller, "pause_s", lambda *_: 0.1)
    monkeypatch.setattr(fleet_poller, "CALL_S", 1.0)
    (tmp_path / "token").write_text("upwe_token")
    section = FleetSection.model_validate(
        {"endpoint": f"https://127.0.0.1:{hostile.server.server_port}", "ca": tmp_path / "ca.pem",
         "enrol_token_file": tmp_path / "token", "every": "1s"}
    )  # fmt: skip
    view = AgentView(
        "victim", {}, lambda: {"status": "ok", "problems": [], "models": {}}, dict, dict, dict, lambda _: [], dict,
        DemandView(dict, lambda _: (), dict, lambda _: None), chooser,
    )  # fmt: skip
    made = FleetPoller(section, view, tmp_path / "state")
    until(lambda: made.describe().facts["enrolled"])
    yield made
    made.close()


def until(holds: Callable[[], object]) -> None:
    end_s = time.monotonic() + 15
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def recovers(hostile: Hostile, device: FleetPoller) -> None:
    """The device polls on, and hears again once the service is fair."""
    hostile.answer = hostile.reply
    before = time.time()
    until(lambda: (device.describe().facts["last_heard_unix_s"] or 0) > before)


def endless(handler: Handler, _: opamp_pb2.AgentToServer) -> None:
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(bytes(65536))


def drip(handler: Handler, _: opamp_pb2.AgentToServer) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    while True:
        handler.wfile.write(b"\0")
        time.sleep(0.05)


def redirect(handler: Handler, _: opamp_pb2.AgentToServer) -> None:
    send(handler, b"", 307, Location="https://attacker.example/v1/opamp")


def garbage(handler: Handler, _: opamp_pb2.AgentToServer) -> None:
    send(handler, b"\xff" * 100)


def for_another(handler: Handler, _: opamp_pb2.AgentToServer) -> None:
    send(handler, opamp_pb2.ServerToAgent(instance_uid=b"x" * 16).SerializeToString())


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (redirect, "307"), SLOWLY(endless, "RESOURCE_EXHAUSTED"), SLOWLY(drip, "DEADLINE_EXCEEDED"),
        SLOWLY(garbage, "not an OpAMP message"), SLOWLY(for_another, "for another device"),
    ],
)  # fmt: skip
def test_an_answer_that_is_none_is_refused_and_said(
    hostile: Hostile, device: FleetPoller, answer: Answer, words: str
) -> None:
    hostile.answer = answer
    until(lambda: words in device.describe().facts["problem"])
    recovers(hostile, device)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (wishing(b'{"release": 7}'), "release 7 is not signed"),
        SLOWLY(wishing(b'{"release": 2}', b"x" * 32), "its hash does not match its content"),
        SLOWLY(wishing(b'{"release": "2"}'), "release: Input should be a valid integer"),
        SLOWLY(wishing(b"[" * 100_000), "Invalid JSON"),
        SLOWLY(wishing(b'{"statistics_s": 0}'), "statistics_s"),
        SLOWLY(wishing(b'{"shares": {"digits": 7}}'), "shares.digits"),
    ],
)
def test_a_wish_that_may_not_be_is_refused_and_said(
    hostile: Hostile,
    device: FleetPoller,
    chooser: Chooser,
    change: Callable[[opamp_pb2.ServerToAgent], None],
    words: str,
) -> None:
    chosen = len(chooser.chosen)
    hostile.answer = lambda handler, message: hostile.reply(handler, message, change)
    until(lambda: any(words in one.remote_config_status.error_message for one in hostile.said))
    assert len(chooser.chosen) == chosen
    recovers(hostile, device)


def test_nothing_but_a_release_can_be_wished(
    hostile: Hostile, device: FleetPoller, chooser: Chooser, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Looser egress, another endpoint, packages, a command, a new UID, a foreign key: none of it is even read."""
    key, certificate = (tmp_path / "state" / name for name in ("key.pem", "cert.pem"))
    before, was = (key.read_bytes(), certificate.read_bytes()), device.describe().facts["instance_uid"]

    def change(reply: opamp_pb2.ServerToAgent) -> None:
        wishing(b'{"release": 5, "egress": "allow", "policy": {"rules": []}, "endpoint": "evil:1"}')(reply)
        reply.remote_config.config.config_map["policy.yaml"].body = b"version: 1"
        reply.packages_available.packages["x"].file.download_url = "https://attacker.example/x"
        reply.command.type = opamp_pb2.CommandType_Restart
        reply.agent_identification.new_instance_uid = b"y" * 16
        reply.connection_settings.opamp.destination_endpoint = "https://attacker.example/v1/opamp"
        reply.connection_settings.opamp.certificate.cert = b"-----BEGIN CERTIFICATE-----"
        reply.connection_settings.opamp.certificate.private_key = b"-----BEGIN PRIVATE KEY-----"
        reply.connection_settings.other_connections["cloud"].destination_endpoint = "evil:1"
        reply.connection_settings.own_metrics.destination_endpoint = "https://attacker.example/v1/metrics"

    with caplog.at_level(logging.WARNING):
        hostile.answer = lambda handler, message: hostile.reply(handler, message, change)
        until(lambda: 5 in chooser.chosen)
        recovers(hostile, device)
    assert (key.read_bytes(), certificate.read_bytes()) == before
    assert device.describe().facts["instance_uid"] == was
    said = "\n".join(caplog.messages)
    for offer in ("packages", "a command", "another instance UID", "a private key", "files of configuration",
                  "connections of other kinds", "not for this device's key"):  # fmt: skip
        assert said.count(offer) == 1, said


@pytest.mark.slow
def test_a_service_that_always_has_news_does_not_make_the_device_poll_without_pause(
    hostile: Hostile, device: FleetPoller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_poller, "pause_s", lambda *_: 60.0)
    numbers = iter(range(10, 10_000))
    hostile.answer = lambda handler, message: hostile.reply(
        handler, message, wishing(b'{"release": %d}' % next(numbers))
    )
    before, polls = len(hostile.said), -1
    while polls != len(hostile.said):
        polls = len(hostile.said)
        time.sleep(8 * fleet_poller.SOON_S)
    assert polls - before <= fleet_poller.MOST_SOON + 3
