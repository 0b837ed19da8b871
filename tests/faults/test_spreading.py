"""Several services behind one name: the agent's requests take turns among them, and go on when one is gone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from tests.faults.certificates import Authority
from tests.faults.names import Names, naming
from tests.faults.scene import until
from tests.faults.stalling import LIMIT_BYTES, RecordingCell, UplinkSender, decision, uplink_of
from tests.integration.oip.test_security import write_tokens
from upwell.edge.uplink.cloud_reply import CloudReply
from upwell.edge.uplink.uplink import UplinkSettings
from upwell.shared.config.security import ClientSecurity, ServerSecurity, TlsFiles
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.fake_dataplane import EXAMPLE, FakeDataplane
from upwell.shared.oip.grpc.client.client import OipClient, RemoteError, RemoteErrorKind
from upwell.shared.oip.grpc.server.server import Connections, RunningServer, start_server
from upwell.shared.routing.flow.flow_actions import CloudFailure
from upwell.shared.routing.reasons import Reason

HOSTS = ("127.0.0.1", "127.0.0.2")
LIMIT_S = 10.0
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@dataclass
class Cloud:
    """One of the services, with `grpc.health.v1` as `upwell serve` has it."""

    dataplane: FakeDataplane
    health: health.HealthServicer
    server: RunningServer

    @classmethod
    def start(cls, address: str, security: ServerSecurity = ServerSecurity()) -> Cloud:  # noqa: B008  a value
        dataplane, checks = FakeDataplane(), health.HealthServicer()
        server = start_server(
            dataplane,
            [address],
            max_workers=16,
            extra=[lambda server: health_pb2_grpc.add_HealthServicer_to_server(checks, server)],
            connections=Connections(security),
        )
        return cls(dataplane, checks, server)

    @property
    def port(self) -> int:
        return int(self.server.addresses[0].rpartition(":")[2])


@dataclass
class Spread:
    """A sender to two services of one name."""

    clouds: list[Cloud]
    names: Names
    sender: UplinkSender

    def ask(self) -> Reason | None:
        """Why there was no answer; None where there was one."""
        outcome = self.sender.ask(decision(within_s=LIMIT_S)).outcome
        assert isinstance(outcome, (CloudReply, CloudFailure))
        return outcome.reason if isinstance(outcome, CloudFailure) else None

    @property
    def asked(self) -> tuple[int, ...]:
        """Requests that came to each."""
        return tuple(len(cloud.dataplane.requests) for cloud in self.clouds)

    def until_both(self) -> None:
        """Until both connections are there: the first that is made takes what comes meanwhile."""
        until(lambda: self.ask() is None and min(self.asked) > 0, timeout_s=LIMIT_S)


@pytest.fixture
def spread() -> Iterator[Spread]:
    with ExitStack() as stack:
        first = Cloud.start(f"{HOSTS[0]}:0")
        stack.callback(first.server.stop, 0.0)
        second = Cloud.start(f"{HOSTS[1]}:{first.port}")
        stack.callback(second.server.stop, 0.0)
        names = stack.enter_context(naming(HOSTS))
        security, cell = ClientSecurity(insecure=True), RecordingCell()
        uplink = uplink_of(cell, UplinkSettings(names.endpoint(first.port), security, LIMIT_BYTES))
        stack.callback(uplink.close)
        yield Spread([first, second], names, UplinkSender(uplink, cell))


def test_requests_take_turns_and_no_name_is_looked_up_before_the_first(spread: Spread) -> None:
    assert spread.names.asked == []
    spread.until_both()
    before = spread.asked
    assert [spread.ask() for _ in range(20)] == [None] * 20
    assert [now - then for now, then in zip(spread.asked, before, strict=True)] == [10, 10]


def test_one_that_dies_costs_no_more_than_what_it_had_in_hand(spread: Spread) -> None:
    spread.until_both()
    spread.clouds[0].server.stop(0.0)
    before = spread.asked
    outcomes = [spread.ask() for _ in range(20)]
    assert outcomes.count(None) >= 19
    assert set(outcomes) <= {None, Reason.CLOUD_UNAVAILABLE}
    assert spread.asked[1] - before[1] == outcomes.count(None)


def test_one_that_says_it_drains_gets_no_more_and_is_taken_back(spread: Spread) -> None:
    spread.until_both()
    spread.clouds[0].health.set("", NOT_SERVING)
    until(lambda: _goes_to(spread, 1), timeout_s=LIMIT_S)
    assert [spread.ask() for _ in range(10)] == [None] * 10
    spread.clouds[0].health.set("", health_pb2.HealthCheckResponse.SERVING)
    until(lambda: _goes_to(spread, 0), timeout_s=LIMIT_S)


def _goes_to(spread: Spread, place: int) -> bool:
    """Whether two requests in a row reach that service alone (0: at least one of them)."""
    before = spread.asked
    assert [spread.ask(), spread.ask()] == [None, None]
    came = [now - then for now, then in zip(spread.asked, before, strict=True)]
    return came == [0, 2] if place else came[0] > 0


def test_where_none_can_be_reached_the_cloud_is_unavailable(spread: Spread) -> None:
    spread.until_both()
    for cloud in spread.clouds:
        cloud.server.stop(0.0)
    assert {spread.ask() for _ in range(3)} == {Reason.CLOUD_UNAVAILABLE}


def test_the_token_goes_with_the_calls_for_health_too(tmp_path: Path, authority: Authority) -> None:
    """Over TLS; without it gRPC's own calls cannot carry one, so that none are made."""
    pair = authority.sign("localhost")
    (tmp_path / "token").write_text("open-sesame")
    tokens = write_tokens(tmp_path / "tokens.yaml", alice="open-sesame")
    for tls, theirs in ((TlsFiles(pair.cert, pair.key), TlsFiles(ca=authority.ca)), (None, None)):
        cloud = Cloud.start("127.0.0.1:0", ServerSecurity(tls, tokens))
        client = OipClient(f"dns:///localhost:{cloud.port}", ClientSecurity(theirs, tmp_path / "token"))
        try:
            client.infer(InferRequest("echo", EXAMPLE), LIMIT_S)
            if tls is not None:
                cloud.health.set("", NOT_SERVING)
                until(lambda client=client: _kind(client) is RemoteErrorKind.UNAVAILABLE, timeout_s=LIMIT_S)  # type: ignore[misc]  # bound at once
        finally:
            client.close()
            cloud.server.stop(0.0)


def test_a_certificate_that_is_not_to_be_believed_is_said_to_be_so(tmp_path: Path, authority: Authority) -> None:
    pair = authority.sign("localhost")
    cloud = Cloud.start("127.0.0.1:0", ServerSecurity(TlsFiles(pair.cert, pair.key)))
    other = Authority(tmp_path, "another")
    client = OipClient(f"dns:///127.0.0.1:{cloud.port}", ClientSecurity(TlsFiles(ca=other.ca)))
    try:
        assert _kind(client) is RemoteErrorKind.CERTIFICATE
    finally:
        client.close()
        cloud.server.stop(0.0)


def _kind(client: OipClient) -> RemoteErrorKind | None:
    try:
        client.infer(InferRequest("echo", EXAMPLE), LIMIT_S)
    except RemoteError as error:
        return error.kind
    return None
