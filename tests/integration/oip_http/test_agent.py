"""The agent itself behind the HTTP server: its routes, its policy's tags and its deadline."""

from __future__ import annotations

import json

from tests.integration.oip_http.harness import Serve, ask
from tests.unit.edge.agents import MODEL, SURE, UNSURE, rows_of, scene
from upwell.edge.server.agent_dataplane import AgentDataplane
from upwell.shared.oip.http.json_tensors import encode_json
from upwell.shared.oip.http.server.extension_routes import Extensions

DENY = "defaults: {deadline: 5s}\nrules: [{name: p, match: {tags: {privacy: device}}, egress: deny}]"


def body(**more: object) -> bytes:
    inputs = []
    for name, array in rows_of(SURE, UNSURE).items():
        datatype, data, _ = encode_json(array)
        inputs.append({"name": name, "datatype": datatype, "shape": list(array.shape), "data": data})
    return json.dumps({"inputs": inputs, **more}).encode()


def test_a_hard_row_goes_up_and_a_tag_in_a_header_keeps_it_here(serve: Serve) -> None:
    with scene(DENY) as at:
        server = serve(dataplane=AgentDataplane(at.agent))
        path = f"/v2/models/{MODEL}/infer"
        kept = ask(server, "POST", path, body(), {"Upwell-Tag-Privacy": "device"})
        assert kept.value["parameters"]["upwell.reason"] == "egress_denied"
        # A proxy's header does not lift what the body says: of different values nobody knows which is meant.
        tagged = body(parameters={"upwell.tag.privacy": "device"})
        refused = ask(server, "POST", path, tagged, {"Upwell-Tag-Privacy": "none"})
        assert (refused.status, "different values" in refused.value["error"]) == (400, True)
        assert at.cloud.requests == []
        sent = ask(server, "POST", path, body(id="one"))
        assert sent.value["id"] == "one"
        assert sent.value["parameters"]["upwell.routes"] == "edge,cloud"
        assert len(at.cloud.requests) == 1


def test_an_agent_says_that_it_has_no_repository(serve: Serve) -> None:
    with scene(DENY) as at:
        dataplane = AgentDataplane(at.agent)
        server = serve(dataplane=dataplane, extensions=Extensions(dataplane))
        for path in ("index", f"models/{MODEL}/load", f"models/{MODEL}/unload"):
            refused = ask(server, "POST", f"/v2/repository/{path}", b"{}")
            assert (refused.status, "ModelStatistics" in refused.value["error"]) == (501, True)
        assert ask(server, "GET", f"/v2/models/{MODEL}/ready").status == 200
