"""A network interface of choice, for gRPC and HTTP: what leaves by it, what happens where it is not there, and two
links of which one is metered."""

from __future__ import annotations

import json
import os
import resource
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client import generate_latest

from tests.faults.certificates import Authority
from tests.faults.clouds import ScriptedCloud
from tests.faults.http_clouds import ScriptedHttpCloud
from tests.faults.scene import BESIDE_OTHERS, CASCADE, ONE, assert_from_cloud, assert_from_edge, in_process, write_agent
from tests.faults.two_links import DEADLINE_S, RETURN_S, Came
from upwell.edge.config import CloudSection
from upwell.edge.server.agent_assembly import _link_and_spool, embedded_agent
from upwell.shared.config.addresses import parse_address
from upwell.shared.config.security import ClientSecurity
from upwell.shared.config.yaml import parse_yaml
from upwell.shared.errors import ConfigError
from upwell.shared.oip.grpc.client.client import OipClient
from upwell.shared.oip.grpc.client.interface_relay import InterfaceRelay

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux binds a socket to an interface")

HERE = "lo"
"""The interface by which this machine reaches itself."""


def tls_grpc(authority: Authority) -> ScriptedCloud:
    pair = authority.sign("grpc")
    return ScriptedCloud(grpc.ssl_server_credentials([(pair.key.read_bytes(), pair.cert.read_bytes())]))


def tls_http(authority: Authority) -> ScriptedHttpCloud:
    pair = authority.sign("http")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    return ScriptedHttpCloud(context)


@pytest.mark.parametrize(("make", "scheme"), [(tls_grpc, ""), (tls_http, "https://")], ids=["grpc", "http"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_over_one_that_is_there_all_is_as_without(
    folder: Path, authority: Authority, make: Callable[[Authority], Any], scheme: str, host: str
) -> None:
    with make(authority) as cloud:
        section = {
            "endpoint": f"{scheme}{host}:{cloud.port}", "tls": {"ca": str(authority.ca)}, "interfaces": [HERE],
        }  # fmt: skip
        with embedded_agent(write_agent(folder, CASCADE, section)) as agent:
            assert_from_cloud(in_process(agent)(ONE))


def test_a_certificate_for_another_host_is_refused(folder: Path, authority: Authority) -> None:
    pair = authority.sign("other", host="other.example")
    credentials = grpc.ssl_server_credentials([(pair.key.read_bytes(), pair.cert.read_bytes())])
    with ScriptedCloud(credentials) as cloud:
        section = {"endpoint": cloud.address, "tls": {"ca": str(authority.ca)}, "interfaces": [HERE]}
        with embedded_agent(write_agent(folder, CASCADE, section)) as agent:
            assert_from_edge(in_process(agent)(ONE), ("cloud_certificate",))
        assert not cloud.requests


@pytest.mark.parametrize("make", [ScriptedCloud, ScriptedHttpCloud], ids=["grpc", "http"])
def test_one_that_is_not_there_is_passed_over(folder: Path, make: Callable[[], Any]) -> None:
    with make() as cloud:
        section = {"endpoint": cloud.endpoint(cloud.address), "interfaces": ["nosuch0", HERE]}
        with embedded_agent(write_agent(folder, CASCADE, section)) as agent:
            ask = in_process(agent)
            seen = [ask(ONE) for _ in range(8)]
        assert {one.route for one in seen[:3]} == {"edge"}
        assert_from_edge(seen[0], ("cloud_unavailable",))
        assert_from_cloud(seen[-1])
        assert all(one.took_s < BESIDE_OTHERS.in_time_s for one in seen)


def test_a_relay_lets_no_other_process_in_and_ends_with_its_client() -> None:
    with ScriptedCloud() as cloud:
        relay = InterfaceRelay(parse_address(cloud.address), HERE)
        name = "\0" + relay.target.removeprefix("unix-abstract:")
        code = f"import socket\nnear = socket.socket(socket.AF_UNIX)\nnear.connect({name!r})\nprint(len(near.recv(9)))"
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60.0)
        with socket.socket(socket.AF_UNIX) as near:
            near.connect(name)
            near.settimeout(10.0)
            assert near.recv(9), "the settings of the server's HTTP/2"
            assert other.stdout == "0\n"
            relay.close()
            while near.recv(1 << 16):
                pass
        with socket.socket(socket.AF_UNIX) as late, pytest.raises(ConnectionRefusedError):
            late.connect(name)


def test_a_client_that_cannot_be_made_leaves_no_relay(tmp_path: Path) -> None:
    def relays() -> set[threading.Thread]:
        return {one for one in threading.enumerate() if one.name == "interface-relay"}

    before = relays()
    with pytest.raises(ConfigError):
        OipClient("127.0.0.1:1", ClientSecurity(token_file=tmp_path / "none"), interface=HERE)
    assert not relays() - before  # those of earlier tests may end meanwhile


def test_a_relay_outlives_too_many_open_files() -> None:
    with ScriptedCloud() as cloud:
        relay = InterfaceRelay(parse_address(cloud.address), HERE)
        name = "\0" + relay.target.removeprefix("unix-abstract:")
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with socket.socket(socket.AF_UNIX) as early, socket.socket(socket.AF_UNIX) as late:
            resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")), hard))
            try:
                early.connect(name)
                time.sleep(2 * InterfaceRelay.PAUSE_S)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            late.connect(name)
            late.settimeout(10.0)
            assert late.recv(9)
        relay.close()


def test_metrics_and_the_fleet_are_told_of_each(folder: Path) -> None:
    with ScriptedCloud() as cloud:
        section = {"endpoint": cloud.address, "interfaces": ["nosuch0", HERE]}
        with embedded_agent(write_agent(folder, CASCADE, section)) as agent:
            for _ in range(8):
                in_process(agent)(ONE)
            text = generate_latest(agent.metrics.registry).decode()
            assert _link_and_spool(agent)["rtt_s"] is not None
    assert 'upwell_breaker_open{interface="nosuch0",model="*"} 1.0' in text
    assert 'upwell_breaker_open{interface="lo",model="*"} 1.0' not in text
    assert 'upwell_link_rtt_seconds{interface="nosuch0"} NaN' in text


@pytest.mark.parametrize("endpoint", ["unix:/tmp/x.sock", "dns:///localhost:1"])
def test_an_endpoint_that_no_interface_leads_to_is_an_error_at_once(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="with `interfaces` an endpoint is HOST:PORT or https://HOST"):
        OipClient(endpoint, interface=HERE)


@pytest.mark.parametrize("names", ["[wlan0, wlan0]", "['']", "[a/b]", "[sixteenletters00]", "[1]"])
def test_wrong_names_are_refused(names: str) -> None:
    with pytest.raises(ConfigError, match=r"interface|string"):
        parse_yaml(f"{{endpoint: 'localhost:1', interfaces: {names}}}", CloudSection)


@pytest.mark.alone
@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["grpc", "http"])
def test_of_two_links_the_metered_one_takes_what_the_free_one_cannot(folder: Path, kind: str) -> None:
    if os.geteuid() != 0 or None in (shutil.which("unshare"), shutil.which("ip"), shutil.which("tc")):
        pytest.skip("network namespaces need root and iproute2")
    words = ["unshare", "--net", sys.executable, "-m", "tests.faults.two_links", kind, str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120.0)
    if "Operation not permitted" in done.stderr or "qdisc kind is unknown" in done.stderr:
        pytest.skip("this kernel lends no network namespaces or no slow links")
    assert done.returncode == 0, done.stderr
    came = {name: Came(**fields) for name, fields in json.loads(done.stdout).items()}
    for name, one in came.items():
        assert one.longest_s < DEADLINE_S or name == "the first is back", (name, one)
        # A free link that was too slow is tried again now and then.
        tried = 2 if name == "the first is slow, large" else 0
        assert one.answered_up >= (0 if name == "both are gone" else one.asked - tried), (name, one)
    both, large = came["both are well"], came["the first is slow, large"]
    small, gone, back = (came[name] for name in ("the first is slow, small", "the first is gone", "the first is back"))
    assert both.sent_bytes[0] > 50_000
    assert large.sent_bytes[1] > 50_000
    assert small.sent_bytes[0] > 1000
    assert max(small.sent_bytes[1], gone.sent_bytes[0]) < 1000
    assert both.sent_bytes[1] < both.sent_bytes[0] / 2
    assert back.sent_bytes[0] > 0
    assert back.longest_s < RETURN_S
    assert gone.sent_bytes[1] > 1000
