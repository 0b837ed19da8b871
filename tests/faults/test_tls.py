"""Over TLS: flipped bits break the connection and never an answer; a peer that cannot prove itself gets nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.examples import grid
from tests.faults.certificates import Authority
from tests.faults.clouds import ScriptedCloud
from tests.faults.scene import CASCADE, DIRECT, ONE, Scene, assert_from_cloud, assert_from_edge, assert_recovers, scene

GONE = ("cloud_unavailable",)
BROKEN = (*GONE, "cloud_deadline", "cloud_error")
"""gRPC reports a record that fails its check as UNKNOWN, as it does an error of the server's own."""
before_or_beside = pytest.mark.parametrize("policy", [CASCADE, DIRECT], ids=["cascade", "direct"])


def credentials(authority: Authority, *, asks_clients: bool = False) -> grpc.ServerCredentials:
    pair = authority.sign("cloud")
    ca = authority.ca.read_bytes() if asks_clients else None
    return grpc.ssl_server_credentials([(pair.key.read_bytes(), pair.cert.read_bytes())], ca, asks_clients)


@pytest.fixture(scope="module")
def tls_cloud(authority: Authority) -> Iterator[ScriptedCloud]:
    with ScriptedCloud(credentials(authority)) as cloud:
        yield cloud


def section(**tls: str) -> Callable[[str], dict[str, Any]]:
    """The `cloud` section of agent.yaml, once the address is known."""
    return lambda address: {"endpoint": address, "tls": tls}


@before_or_beside
@pytest.mark.parametrize(
    ("way", "from_byte", "mask"), grid(["up", "down"], [0, 40, 200], {"lowest bit": 0x01, "highest bit": 0x80})
)
def test_flipped_bits_break_the_connection_and_no_answer(
    folder: Path,
    tls_cloud: ScriptedCloud,
    authority: Authority,
    policy: dict[str, Any],
    way: str,
    from_byte: int,
    mask: int,
) -> None:
    with scene(folder, policy, tls_cloud, cloud_section=section(ca=str(authority.ca))) as it:
        assert_from_cloud(it.ask(ONE))
        getattr(it.proxy, way).garble(from_byte, mask)
        for ask in it.asks.values():
            assert_from_edge(ask(ONE), BROKEN)
        it.proxy.restore()
        assert_recovers(it.ask)


@before_or_beside
def test_a_server_that_nobody_vouches_for(
    folder: Path, tls_cloud: ScriptedCloud, tmp_path_factory: pytest.TempPathFactory, policy: dict[str, Any]
) -> None:
    stranger = Authority(tmp_path_factory.mktemp("stranger"), "somebody else")
    tls_cloud.requests.clear()
    with scene(folder, policy, tls_cloud, cloud_section=section(ca=str(stranger.ca))) as it:
        assert_from_edge(it.ask(ONE), ("cloud_certificate",))
    assert tls_cloud.requests == []


def test_a_server_without_tls(folder: Path, cloud: ScriptedCloud, authority: Authority) -> None:
    with scene(folder, CASCADE, cloud, cloud_section=section(ca=str(authority.ca))) as it:
        assert_from_edge(it.ask(ONE), GONE)
    assert cloud.requests == []


def test_a_device_that_shows_its_certificate_is_let_in_and_one_without_is_not(
    tmp_path_factory: pytest.TempPathFactory, authority: Authority
) -> None:
    device = authority.sign("device")
    with ScriptedCloud(credentials(authority, asks_clients=True)) as cloud:
        known = section(ca=str(authority.ca), cert=str(device.cert), key=str(device.key))
        with scene(tmp_path_factory.mktemp("known"), CASCADE, cloud, cloud_section=known) as it:
            assert_from_cloud(it.ask(ONE))
        unknown = section(ca=str(authority.ca))
        with scene(tmp_path_factory.mktemp("unknown"), CASCADE, cloud, cloud_section=unknown) as it:
            assert_from_edge(it.ask(ONE), GONE)
        assert len(cloud.requests) == 1


def test_nothing_readable_crosses_the_link(folder: Path, tls_cloud: ScriptedCloud, authority: Authority) -> None:
    with scene(folder, CASCADE, tls_cloud, cloud_section=section(ca=str(authority.ca))) as it:
        assert_from_cloud(it.ask(ONE))
        assert not carries(it, bytes(ONE[0]))


def carries(it: Scene, payload: bytes) -> bool:
    """Whether the proxy saw these bytes on their way up."""
    assert it.proxy.up.record is not None
    return payload in bytes(it.proxy.up.record)


def test_without_tls_the_proxy_does_see_the_payload(folder: Path, cloud: ScriptedCloud) -> None:
    """So that its absence elsewhere proves something."""
    with scene(folder, CASCADE, cloud) as it:
        assert_from_cloud(it.ask(ONE))
        assert carries(it, bytes(ONE[0]))
