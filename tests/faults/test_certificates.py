"""A cloud whose certificate is not one to believe: nothing is sent, the reason says so, another endpoint is used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.faults.certificates import Authority, Pair
from tests.faults.clouds import ScriptedCloud
from tests.faults.scene import CASCADE, ONE, assert_from_cloud, assert_from_edge, scene
from tests.faults.stalling import LIMIT_BYTES, RecordingCell, allowed, decision, uplink_of
from upwell.edge.uplink.cloud_reply import CloudReply
from upwell.edge.uplink.uplink import UplinkSettings
from upwell.shared.config.security import ClientSecurity, TlsFiles
from upwell.shared.oip.dataplane import InferRequest
from upwell.shared.oip.grpc.client.client import OipClient, RemoteError, RemoteErrorKind
from upwell.shared.routing.flow.flow_actions import CloudFailure
from upwell.shared.routing.reasons import Reason

UNBELIEVABLE: Mapping[str, dict[str, Any]] = {
    "expired": {"starts_in": timedelta(days=-3)},
    "not yet valid": {"starts_in": timedelta(days=1)},
    "of another name": {"host": "other.example"},
}
each = pytest.mark.parametrize("how", UNBELIEVABLE)


@contextmanager
def showing(pair: Pair) -> Iterator[ScriptedCloud]:
    credentials = grpc.ssl_server_credentials([(pair.key.read_bytes(), pair.cert.read_bytes())])
    with ScriptedCloud(credentials) as cloud:
        yield cloud


@each
def test_the_device_answers_and_says_why_and_nothing_is_sent(folder: Path, authority: Authority, how: str) -> None:
    tls = {"ca": str(authority.ca)}
    with showing(authority.sign("cloud", **UNBELIEVABLE[how])) as cloud:
        section = lambda address: {"endpoint": address, "tls": tls}  # noqa: E731  as scene takes it
        with scene(folder, CASCADE, cloud, cloud_section=section) as it:
            for _ in range(2):
                assert_from_edge(it.ask(ONE), ("cloud_certificate",))
        assert cloud.requests == []


def test_what_a_server_says_in_its_own_words_is_no_such_failure(cloud: ScriptedCloud) -> None:
    def lie(_: object, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.UNAVAILABLE, "upstream: failed to connect: CERTIFICATE_VERIFY_FAILED")

    cloud.behaviour = lie
    client = OipClient(cloud.address)
    with pytest.raises(RemoteError) as caught:
        client.infer(InferRequest("digits-large", {"image": ONE}), 5.0)
    client.close()
    assert caught.value.kind is RemoteErrorKind.UNAVAILABLE


def test_another_endpoint_with_a_good_certificate_is_used(authority: Authority) -> None:
    with showing(authority.sign("old", **UNBELIEVABLE["expired"])) as old, showing(authority.sign("new")) as new:
        security = ClientSecurity(tls=TlsFiles(ca=authority.ca))
        uplink = uplink_of(RecordingCell(), UplinkSettings(old.address, security, LIMIT_BYTES, [new.address]))
        outcomes = []
        for _ in range(3):
            at = decision()
            call = uplink.start(InferRequest("digits-large", {"image": ONE}, id="1"), allowed, at.give_up_s)
            outcomes.append(call.wait(at.give_up_s))
        uplink.close()
        first, *others = outcomes
        assert isinstance(first, CloudFailure)
        assert first.reason is Reason.CLOUD_CERTIFICATE
        assert all(isinstance(one, CloudReply) for one in others)
        assert (len(old.requests), len(new.requests)) == (0, 2)


def test_a_certificate_that_is_renewed_is_believed(folder: Path, authority: Authority) -> None:
    """The server comes back on its port with a good one."""
    pair = authority.sign("renewed", **UNBELIEVABLE["expired"])

    def configuration() -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(pair.key.read_bytes(), pair.cert.read_bytes())])

    credentials = grpc.dynamic_ssl_server_credentials(configuration(), configuration)
    section = lambda address: {"endpoint": address, "tls": {"ca": str(authority.ca)}}  # noqa: E731  as scene takes it
    with ScriptedCloud(credentials) as cloud, scene(folder, CASCADE, cloud, cloud_section=section) as it:
        assert_from_edge(it.ask(ONE), ("cloud_certificate",))
        authority.sign("renewed")
        assert_from_cloud(it.ask(ONE))
