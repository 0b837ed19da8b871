"""A fleet service on a real socket, and devices that speak to it without an agent."""

from __future__ import annotations

import contextlib
import functools
import json
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from upwell.fleet.config import FleetServiceSection
from upwell.fleet.service.application import Fleet, open_fleet
from upwell.fleet.service.server import FleetServer
from upwell.fleet.users import Actor, Role, add_user
from upwell.rpc.opamp.v1 import opamp_pb2
from upwell.shared.config.security import ClientSecurity, TlsFiles
from upwell.shared.oip.http.client.exchange import HttpsCaller, Received

CAPABILITIES = (
    opamp_pb2.AgentCapabilities_ReportsStatus
    | opamp_pb2.AgentCapabilities_AcceptsRemoteConfig
    | opamp_pb2.AgentCapabilities_ReportsRemoteConfig
    | opamp_pb2.AgentCapabilities_AcceptsOpAMPConnectionSettings
)


@dataclass
class Remote:
    """A service, by its address; `operator` is a token that may do anything."""

    folder: Path
    url: str
    ca: Path
    operator: str

    def send(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Received:
        """One call without any proof of who calls."""
        return self._caller.call(method, path, body=body, headers=headers)

    @functools.cached_property
    def _caller(self) -> HttpsCaller:
        return HttpsCaller(self.url, ClientSecurity(TlsFiles(ca=self.ca)))

    def call(self, method: str, path: str, body: Any = None, token: str = "") -> tuple[int, Any]:
        """One call of the REST interface: status and JSON."""
        headers = {"Authorization": f"Bearer {token or self.operator}", "Content-Type": "application/json"}
        received = self.send(method, "/api/v1" + path, b"" if body is None else json.dumps(body).encode(), headers)
        return received.status, json.loads(received.body) if received.body else None

    def get(self, path: str) -> Any:
        """What it says."""
        status, found = self.call("GET", path)
        assert status == HTTPStatus.OK, found
        return found

    def do(self, method: str, path: str, body: Any = None) -> Any:
        """Have it done."""
        status, found = self.call(method, path, body)
        assert status in (HTTPStatus.OK, HTTPStatus.NO_CONTENT), found
        return found

    def enrolment_token(self, **labels: str) -> str:
        """A token for one device."""
        return str(self.do("POST", "/tokens", {"labels": labels})["token"])

    def enrolled(self, name: str = "device", **labels: str) -> FakeDevice:
        """A device that has enrolled."""
        device = FakeDevice(self, name)
        assert device.enrol(self.enrolment_token(**labels)).status == HTTPStatus.OK
        return device


@dataclass
class Service(Remote):
    """A service that runs in a thread of this process."""

    fleet: Fleet
    server: FleetServer
    thread: threading.Thread

    def stop(self) -> None:
        """End it, as a signal would."""
        self.server.stop()
        self.thread.join(20)
        assert not self.thread.is_alive()


@contextlib.contextmanager
def service(folder: Path, **section: Any) -> Iterator[Service]:
    """A service with its state in `folder`."""
    keys = {
        "listen": ("127.0.0.1:0",), "database": {"file": folder / "fleet.db"},
        "authority": {"cert": folder / "ca.pem", "key": folder / "ca.key"}, **section,
    }  # fmt: skip
    fleet = open_fleet(FleetServiceSection.model_validate(keys))
    operator = user(fleet, "operator", "operator")
    server = FleetServer(fleet)
    thread = threading.Thread(target=server.run, name="fleet-service", daemon=True)
    thread.start()
    url = f"https://{server.addresses[0]}"
    running = Service(folder, url, fleet.section.authority.cert, operator, fleet, server, thread)
    try:
        yield running
    finally:
        running.stop()


def user(fleet: Fleet, name: str, role: Role) -> str:
    """A new user's token."""
    with fleet.state.database.writing() as connection:
        return add_user(connection, Actor("test", time.time()), f"{name}-{time.time_ns()}", role)


@dataclass
class FakeDevice:
    """A device that speaks OpAMP, and has no agent."""

    service: Remote
    name: str
    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    uid: bytes = b""
    sequence_num: int = 0
    heard: opamp_pb2.ServerToAgent = field(default_factory=opamp_pb2.ServerToAgent)
    caller: HttpsCaller | None = None

    def __post_init__(self) -> None:
        self.uid = self.uid or self.name.encode().ljust(16, b"-")[:16]
        self.folder = self.service.folder / f"device-{self.name}-{id(self)}"
        self.folder.mkdir()
        self.folder.joinpath("key.pem").write_bytes(
            self.key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )

    @property
    def files(self) -> TlsFiles:
        """Its certificate and key, and whom it trusts."""
        return TlsFiles(self.folder / "cert.pem", self.folder / "key.pem", self.service.ca)

    def csr(self) -> bytes:
        """A request for a certificate."""
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self.name)])
        request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(self.key, hashes.SHA256())
        return request.public_bytes(serialization.Encoding.PEM)

    def message(self, **parts: Any) -> opamp_pb2.AgentToServer:
        """The next message."""
        self.sequence_num += 1
        parts = {"instance_uid": self.uid, "sequence_num": self.sequence_num, "capabilities": CAPABILITIES, **parts}
        return opamp_pb2.AgentToServer(**parts)

    def description(self, **attributes: str) -> opamp_pb2.AgentDescription:
        """What it is, with a name."""
        found = opamp_pb2.AgentDescription()
        for key, value in {"upwell.agent.name": self.name, **attributes}.items():
            found.non_identifying_attributes.add(key=key).value.string_value = value
        return found

    def enrol(self, token: str) -> Received:
        """Ask for a certificate and, if one comes, keep it."""
        message = self.message(agent_description=self.description())
        message.connection_settings_request.opamp.certificate_request.csr = self.csr()
        headers = {"Content-Type": "application/x-protobuf", "Authorization": f"Bearer {token}"}
        received = self.service.send("POST", "/v1/opamp", message.SerializeToString(), headers)
        self.hear(received)
        return received

    def poll(self, **parts: Any) -> opamp_pb2.ServerToAgent:
        """Poll, and be answered."""
        received = self.send(self.message(**parts).SerializeToString())
        assert received.status == HTTPStatus.OK, received.body
        return self.hear(received)

    def send(self, body: bytes, headers: Mapping[str, str] | None = None) -> Received:
        """Send these bytes with the device's certificate."""
        if self.caller is None or self.caller.endpoint != self.service.url:
            self.caller = HttpsCaller(self.service.url, ClientSecurity(self.files))
        return self.caller.call(
            "POST", "/v1/opamp", body=body, headers={"Content-Type": "application/x-protobuf", **(headers or {})}
        )

    def hear(self, received: Received) -> opamp_pb2.ServerToAgent:
        """Read the answer."""
        self.heard = opamp_pb2.ServerToAgent.FromString(received.body)
        if self.heard.connection_settings.opamp.certificate.cert:
            self.folder.joinpath("cert.pem").write_bytes(self.heard.connection_settings.opamp.certificate.cert)
        return self.heard
