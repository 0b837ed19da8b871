"""A marked request by every way in, under every policy and every cloud, and all that could hear of it."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.faults.certificates import Authority
from tests.faults.clouds import GARBAGE, Behaviour, ScriptedCloud, clipped, good, slow, status
from tests.faults.connect_proxy import ConnectProxy
from tests.faults.http_clouds import ScriptedHttpCloud
from tests.faults.oracles import CLOUD_MODEL, EDGE_BUNDLE, picture
from tests.faults.proxy import Proxy
from tests.faults.scene import until
from tests.integration.telemetry.collector import Collector, collecting
from upwell.edge.server.agent_assembly import embedded_agent, serve_metrics
from upwell.edge.server.agent_core import AgentCore
from upwell.edge.server.agent_dataplane import AgentDataplane
from upwell.rpc.oip.v2 import model_stream_pb2
from upwell.shared.errors import UpwellError
from upwell.shared.oip.codec import converters
from upwell.shared.oip.dataplane import InferRequest, InferResponse
from upwell.shared.oip.grpc.client.client import OipClient
from upwell.shared.oip.grpc.server.server import start_server
from upwell.shared.oip.http.client.client import HttpClient
from upwell.shared.oip.http.server.server import start_http_server
from upwell.shared.routing.decide.router_state import RouterState
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.tensors import Array

CLOUD = "cloud.test"
"""A name that no name service knows: only the proxy can take it anywhere."""
DEADLINE_S = 0.08
LIMIT_S = 20.0
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
MARK, NUMBER = "zqxjk", 4242420000000
"""What private requests are marked with: a word and its number, or a number that is their sum."""
FOUND = re.compile(rb"zqxjk-(\d{6})|424242(\d{7})")
PUBLIC = "everybody-may-see-this"

UP = {"name": "up", "match": {}, "route": "cloud"}
TAGGED = {"name": "private", "match": {"tags": {"privacy": "device"}}, "egress": "deny"}
HARD = {"hard": {"measure": "max_prob", "below": 1.0}}
EVERYTHING: Mapping[str, Any] = {"spool": True, "audit": "100%", "record": {"keep": "1MiB"}, "explore": "100%"}


def _deny(**rule: Any) -> list[Any]:
    return [UP, {"name": "private", "egress": "deny", **rule}]


SOME: Mapping[str, Mapping[str, Any]] = {
    "the first rule": {"rules": [TAGGED, UP]},
    "the last rule": {"rules": [UP, TAGGED]},
    "hard": {"defaults": HARD, "rules": [TAGGED]},
    "large": {"defaults": {"hard": "off", "large": {"above": "1B"}}, "rules": [TAGGED]},
    "kept": {"defaults": {**HARD, **EVERYTHING}, "rules": [TAGGED, UP]},
    "audited": {"defaults": {"hard": {"measure": "max_prob", "below": 0.0001}, **EVERYTHING}, "rules": [TAGGED]},
    "sent again": {
        "defaults": {"on_cloud_failure": "retry", "hedge": {"after": "10ms", "at_most": "50%"}},
        "rules": [UP, TAGGED],
    },
    "an error": {"defaults": {"on_cloud_failure": "error"}, "rules": [UP, TAGGED]},
    "a source": {"defaults": {"source": {"tag": "patient", "rate": "1/h"}}, "rules": [UP, TAGGED]},
    "an expression": {"rules": _deny(**{"if": 'request.tags.privacy == "device"'})},
    "what cannot be evaluated": {"rules": _deny(**{"if": "int(request.tags.privacy) > 7"})},
}
"""Policies that keep a request tagged `privacy: device`, and let others go."""

ALL: Mapping[str, Mapping[str, Any]] = {
    "everything": {"rules": _deny(match={})},
    "every model": {"rules": _deny(match={"model": ["digits", "above", "lookup"]})},
    "every size": {"defaults": EVERYTHING, "rules": _deny(match={"size": {"above": "1B"}})},
    "all day": {"defaults": HARD, "rules": [_deny(match={"hours": "00:00-00:00"})[1]]},
    "always true": {"rules": _deny(**{"if": "true"})},
}
"""Policies under which nothing may leave."""

BEHAVIOURS: Mapping[str, Behaviour] = {
    "good": good,
    "silent": slow(0.5),
    "draining": status(grpc.StatusCode.UNAVAILABLE),
    "erring": status(grpc.StatusCode.INTERNAL),
    "full": status(grpc.StatusCode.RESOURCE_EXHAUSTED),
    "not knowing the model": status(grpc.StatusCode.NOT_FOUND),
    "refusing the request": status(grpc.StatusCode.INVALID_ARGUMENT),
    "garbling": GARBAGE["nan"],
    "cutting": clipped(0.5),
}
ROUTES = ("gRPC", "HTTP", "gRPC by proxy", "HTTPS by proxy")


@dataclass(frozen=True)
class Payload:
    """What is asked: of which model, and what of it holds the mark."""

    model: str
    inputs: Callable[[str, int], Mapping[str, Array]]


def _rows(data: bytes) -> Array:
    return np.array([data], dtype=np.object_)


PAYLOADS: Mapping[str, Payload] = {
    "a picture": Payload("digits", lambda mark, _: {"image": _rows(picture(3) + mark.encode())}),
    "no picture": Payload("digits", lambda mark, _: {"image": _rows(mark.encode())}),
    "an unknown input": Payload("digits", lambda mark, _: {mark: _rows(picture(3))}),
    "a number": Payload("lookup", lambda _, number: {"indices": np.array([NUMBER + number], np.int64)}),
    "in the cloud alone": Payload("above", lambda mark, _: {"image": _rows(picture(3) + mark.encode())}),
}


class Heard(logging.Handler):
    """Everything that is logged, tracebacks included, as the agent's own level has it."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(logging.Formatter("%(message)s").format(record))


@dataclass
class Matrix:
    """An agent that serves by every way, one route to its cloud, and the recorders."""

    agent: AgentCore
    cloud: ScriptedCloud | ScriptedHttpCloud
    entry: Proxy
    collector: Collector
    heard: Heard
    client: OipClient
    stream: grpc.StreamStreamMultiCallable[bytes, bytes]
    http: HttpClient
    web: str
    page: str
    asked: dict[int, str] = field(default_factory=dict)
    """Of each private request, by its number, what it was."""

    def set_policy(self, policy: Mapping[str, Any]) -> None:
        """From now on this policy; nothing is known of cloud and link, so that whatever may go does."""
        defaults = {"deadline": f"{DEADLINE_S}s", **policy.get("defaults", {})}
        written = Policy.model_validate({"version": 1, **policy, "defaults": defaults})
        self.agent.router.replace_policy(written)
        self.agent.router.recent = RouterState()

    def ask_public(self) -> None:
        """A request that may go, so that link, breaker, probes and hedges are at work beside the private ones."""
        with contextlib.suppress(UpwellError):
            image = _rows(picture(5) + PUBLIC.encode())
            self.agent.infer("digits", {"image": image}, tags={"privacy": "0"}, id=PUBLIC)

    def ask(self, way: str, what: str, where: str) -> None:
        """A private request; `where` says under which policy and cloud."""
        number = len(self.asked)
        self.asked[number] = f"{where}, {way}, {what}"
        mark, payload = f"{MARK}-{number:06d}", PAYLOADS[what]
        tags = {"privacy": "device", "patient": mark}
        request = InferRequest(
            payload.model, payload.inputs(mark, number), id=mark,
            parameters={f"upwell.tag.{name}": value for name, value in tags.items()},
        )  # fmt: skip
        with contextlib.suppress(UpwellError):
            self._check(WAYS[way](self, request, tags))

    def _check(self, answer: InferResponse | None) -> None:
        if answer is not None:
            assert answer.parameters["upwell.route"] == "edge", self.asked[len(self.asked) - 1]

    @contextmanager
    def untouched(self, where: str) -> Iterator[None]:
        """Nobody connects meanwhile, and no byte comes up."""
        until(lambda: self.entry.open_connections == 0)
        before = self.entry.accepted, self.entry.up.received_bytes
        yield
        assert (self.entry.accepted, self.entry.up.received_bytes) == before, where

    def read_pages(self) -> bytes:
        """The pages of metrics and health, which are there until the agent is closed."""
        with urllib.request.urlopen(self.page, timeout=LIMIT_S) as page:  # noqa: S310  ours, on loopback
            metrics: bytes = page.read()
        with urllib.request.urlopen(self.page.replace("/metrics", "/health"), timeout=LIMIT_S) as page:  # noqa: S310  likewise
            health: bytes = page.read()
        return metrics + health

    def leaked(self, pages: bytes) -> dict[str, dict[int, str]]:
        """Who heard of which private requests, `pages` included."""
        requests = b"".join(converters.serialize_infer_request(one) for one in self.cloud.requests)
        recorders = {
            "cloud": requests + "".join(self.cloud.headers).encode(),
            "wire": bytes(self.entry.up.record or b""),
            "collector": bytes(self.collector.bodies),
            "metrics page": pages,
            "log": "\n".join(self.heard.lines).encode("utf-8", "replace"),
        }
        assert b"upwell_requests" in pages
        assert PUBLIC.encode() in recorders["cloud"]  # or the silence of the others says nothing
        return {name: found for name, data in recorders.items() if (found := self._of(data))}

    def _of(self, data: bytes) -> dict[int, str]:
        numbers = {int(word or number) for word, number in FOUND.findall(data)}
        return {number: self.asked.get(number, "nobody's") for number in sorted(numbers)}


def _in_process(at: Matrix, request: InferRequest, tags: Mapping[str, str]) -> None:
    answer = at.agent.infer(request.model, request.inputs, tags=tags, id=request.id)
    assert answer.route == "edge"


def _over_grpc(at: Matrix, request: InferRequest, _: Mapping[str, str]) -> InferResponse:
    return at.client.infer(request, LIMIT_S)


def _over_a_stream(at: Matrix, request: InferRequest, _: Mapping[str, str]) -> InferResponse | None:
    (data,) = at.stream(iter([converters.serialize_infer_request(request)]), timeout=LIMIT_S)
    found = model_stream_pb2.ModelStreamInferResponse.FromString(data)
    if found.error_message:
        return None
    return converters.parse_infer_response(found.infer_response.SerializeToString())


def _over_http(at: Matrix, request: InferRequest, _: Mapping[str, str]) -> InferResponse:
    return at.http.infer(request, LIMIT_S)


def _as_json(at: Matrix, request: InferRequest, tags: Mapping[str, str]) -> None:
    """By hand: what is no text has no place there, so pictures are sent as they are, with tags in headers."""
    (name, array), *_ = request.inputs.items()
    headers = {"Upwell-Id": request.id, **{f"Upwell-Tag-{key}": value for key, value in tags.items()}}
    if array.dtype == np.object_ and name == "image":
        body, headers["Content-Type"] = bytes(array[0]), "image/png"
    else:
        data = [one.decode("latin-1") if isinstance(one, bytes) else one for one in array.tolist()]
        datatype = "BYTES" if array.dtype == np.object_ else "INT64"
        given = {"name": name, "datatype": datatype, "shape": list(array.shape), "data": data}
        body = json.dumps({"id": request.id, "inputs": [given]}).encode()
    url = f"http://{at.web}/v2/models/{request.model}/infer"
    asked = urllib.request.Request(url, body, headers)
    with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(asked, timeout=LIMIT_S) as reply:  # noqa: S310  likewise
        assert json.load(reply)["parameters"]["upwell.route"] == "edge"


WAYS: Mapping[str, Callable[[Matrix, InferRequest, Mapping[str, str]], InferResponse | None]] = {
    "Agent.infer": _in_process,
    "gRPC": _over_grpc,
    "stream": _over_a_stream,
    "HTTP": _over_http,
    "by hand": _as_json,
}


def _lookup(folder: Path) -> Path:
    """A model that repeats, in its error, a number that it was given."""
    table = numpy_helper.from_array(np.eye(10, dtype=np.float32), "table")
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "indices"], ["scores"])],
        "lookup",
        [helper.make_tensor_value_info("indices", TensorProto.INT64, ["rows"])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["rows", 10])],
        [table],
    )
    path = folder / "lookup.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@contextmanager
def _way_up(
    route: str, folder: Path, authority: Authority, environment: pytest.MonkeyPatch
) -> Iterator[tuple[ScriptedCloud | ScriptedHttpCloud, Proxy, dict[str, Any]]]:
    """The cloud, what stands before it and counts, and the agent's `cloud` section."""
    by_proxy, over_http = route.endswith("by proxy"), route.startswith("HTTP")
    pair = authority.sign(f"matrix-{over_http}", host=CLOUD) if by_proxy else None
    cloud: ScriptedCloud | ScriptedHttpCloud
    with ExitStack() as stack:
        if over_http:
            context = None
            if pair is not None:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(pair.cert, pair.key)
            cloud = stack.enter_context(ScriptedHttpCloud(context))
        else:
            credentials = None
            if pair is not None:
                credentials = grpc.ssl_server_credentials([(pair.key.read_bytes(), pair.cert.read_bytes())])
            cloud = stack.enter_context(ScriptedCloud(credentials))
        entry = stack.enter_context(Proxy(cloud.address, record=True))
        section: dict[str, Any] = {"endpoint": cloud.endpoint(entry.address)}
        if by_proxy:
            tunnel = stack.enter_context(ConnectProxy({f"{CLOUD}:443": entry.address}))
            environment.setenv("HTTPS_PROXY", f"http://{tunnel.address}")
            environment.setenv("https_proxy", f"http://{tunnel.address}")
            section = {
                "endpoint": f"https://{CLOUD}" if over_http else f"{CLOUD}:443",
                "tls": {"ca": str(authority.ca)},
            }
        yield cloud, entry, section


@contextmanager
def matrix(route: str, folder: Path, authority: Authority) -> Iterator[Matrix]:
    """The agent and its surroundings, with one route to the cloud."""
    with ExitStack() as stack:
        environment = stack.enter_context(pytest.MonkeyPatch.context())
        for name in ("http_proxy", "https_proxy", "no_proxy", "grpc_proxy", "no_grpc_proxy"):
            environment.delenv(name, raising=False)
            environment.delenv(name.upper(), raising=False)
        collector = stack.enter_context(collecting())
        cloud, entry, section = stack.enter_context(_way_up(route, folder, authority, environment))
        config = {
            "version": 1,
            "agent": {"state_dir": "state", "traces": {"endpoint": collector.endpoint, "sample": "100%"}},
            "cloud": section,
            "models": {
                "digits": {"edge": {"bundle": str(EDGE_BUNDLE)}, "cloud": {"model": CLOUD_MODEL}},
                "lookup": {"edge": {"file": str(_lookup(folder))}, "cloud": {"model": "lookup-large"}},
                "above": {"cloud": {"model": CLOUD_MODEL}},
            },
        }
        (folder / "agent.yaml").write_text(json.dumps(config))
        heard = Heard()
        root = logging.getLogger()
        level = root.level
        root.addHandler(heard)
        root.setLevel(logging.INFO)
        stack.callback(root.setLevel, level)
        stack.callback(root.removeHandler, heard)
        agent = stack.enter_context(embedded_agent(folder / "agent.yaml"))
        plane = AgentDataplane(agent)
        server = start_server(plane, ["127.0.0.1:0"], max_workers=8)
        stack.callback(server.stop, 0.0)
        web = start_http_server(plane, ["127.0.0.1:0"], max_workers=8)
        stack.callback(web.stop, 0.0)
        page = serve_metrics(agent, "127.0.0.1:0")
        client = OipClient(server.addresses[0])
        stack.callback(client.close)
        channel = stack.enter_context(grpc.insecure_channel(server.addresses[0], [("grpc.enable_http_proxy", 0)]))
        http = HttpClient(f"http://{web.addresses[0]}")
        stack.callback(http.close)
        yield Matrix(
            agent, cloud, entry, collector, heard, client, channel.stream_stream(STREAM), http, web.addresses[0],
            page,
        )  # fmt: skip


def fill(at: Matrix, policies: Sequence[str], behaviours: Sequence[str], ways: Sequence[str]) -> None:
    """Ask by every way and with every payload, under each of these policies and clouds."""
    for policy in policies:
        for behaviour in behaviours:
            at.cloud.behaviour = BEHAVIOURS[behaviour]
            where = f"{policy}, {behaviour}"
            if policy in SOME:
                at.set_policy(SOME[policy])
                at.ask_public()
                at.agent.router.recent = RouterState()
                for way in ways:
                    for what in PAYLOADS:
                        at.ask(way, what, where)
                continue
            at.set_policy(ALL[policy])
            uplink = at.agent.uplink
            assert uplink is not None
            uplink.heed_policy()  # which the agent does once a second
            with at.untouched(where):
                for way in ways:
                    for what in PAYLOADS:
                        at.ask(way, what, where)
                for ask in (at.client.metadata, at.http.metadata):
                    with contextlib.suppress(UpwellError):
                        ask("above", LIMIT_S)
