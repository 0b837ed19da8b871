"""The REST interface: its document describes it, roles hold, every change is on record, errors are problems."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from tests.fleet_service import Service, service, user
from upwell.fleet.users import MOST_FAILURES


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(tmp_path_factory.mktemp("fleet")) as running:
        running.enrolled("gate", site="kiel")
        running.do("PUT", "/groups/kiel", {"expression": 'labels.site == "kiel"'})
        yield running


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def value_for(schema: dict[str, Any], document: dict[str, Any], chance: random.Random) -> Any:
    """A value that the schema allows, or now and then one that it does not."""
    if chance.random() < 0.2:
        return chance.choice([None, -1, 2**70, "", "\x00'--<b>", "x" * 5000, [], {}, True, 1.5])
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        return value_for(chance.choice(schema["anyOf"]), document, chance)
    if "enum" in schema:
        return chance.choice(schema["enum"])
    match schema.get("type"):
        case "integer" | "number":
            return chance.choice([schema.get("minimum", 0), schema.get("maximum", 10), 100])
        case "object" if "properties" in schema:
            return {key: value_for(one, document, chance) for key, one in schema["properties"].items()}
        case "object":
            return {chance.choice("ab"): value_for(schema.get("additionalProperties", {}), document, chance)}
        case "null":
            return None
        case _:
            return chance.choice(["gate", "kiel", "1", "labels.site == 'kiel'", "name"])


def conforms(value: Any, schema: dict[str, Any], document: dict[str, Any]) -> bool:
    """Whether the value is what the schema says, as far as the document's schemas go."""
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        return any(conforms(value, one, document) for one in schema["anyOf"])
    kinds: dict[str, type | tuple[type, ...]] = {
        "string": str,
        "boolean": bool,
        "integer": int,
        "number": (int, float),
        "array": list,
        "object": dict,
    }
    kind = schema.get("type")
    if kind == "null":
        return value is None
    if kind is not None and not isinstance(value, kinds[kind]):
        return False
    if kind == "array":
        return all(conforms(one, schema["items"], document) for one in value)
    if kind == "object":
        known = schema.get("properties")
        if known is not None:
            return set(schema.get("required", ())) <= set(value) <= set(known) and all(
                conforms(one, known[key], document) for key, one in value.items()
            )
    return True


def test_whatever_is_called_is_answered_as_the_document_says(fleet: Service) -> None:
    document = json.loads(fleet.send("GET", "/api/v1/openapi.json").body)
    assert document["openapi"] == "3.1.0"
    found = list(operations(document))
    assert len({operation["operationId"] for _, _, operation in found}) == len(found) >= 20
    chance, seen = random.Random(3), set[int]()
    for (method, path, operation), _ in itertools.product(found, range(3)):
        where, query = path.removeprefix("/api/v1"), {}
        for parameter in operation.get("parameters", ()):
            value = value_for(parameter["schema"], document, chance)
            if parameter["in"] == "path":
                where = where.replace(f"{{{parameter['name']}}}", quote(str(value) or "-", safe=""))
            else:
                query[parameter["name"]] = str(value)
        body = None
        if "requestBody" in operation:
            body = value_for(operation["requestBody"]["content"]["application/json"]["schema"], document, chance)
        status, said = fleet.call(method, f"{where}?{urlencode(query)}", body)
        seen.add(status)
        answer = operation["responses"].get(str(status))
        assert answer is not None, (method, where, status, said)
        if "content" in answer:
            schema = next(iter(answer["content"].values()))["schema"]
            assert conforms(said, schema, document), (method, where, said)
    assert {200, 204, 400, 404} <= seen
    assert fleet.get("/devices")["devices"]


def test_a_viewer_looks_and_an_operator_acts(fleet: Service) -> None:
    viewer = user(fleet.fleet, "viewer", "viewer")
    document = json.loads(fleet.send("GET", "/api/v1/openapi.json").body)
    for method, path, operation in operations(document):
        where = path.removeprefix("/api/v1").replace("{", "").replace("}", "")
        status, said = fleet.call(method, where, {} if method != "GET" else None, token=viewer)
        assert (status == 403) == ("operator" in operation["description"]), (method, path, said)


def test_without_a_known_token_there_is_nothing_and_guessing_is_slowed(tmp_path: Path) -> None:
    with service(tmp_path) as fleet:
        received = fleet.send("GET", "/api/v1/devices")
        assert (received.status, json.loads(received.body)["title"]) == (401, "Unauthorized")
        found = [fleet.call("GET", "/devices", token=f"upwu_{guess}") for guess in range(MOST_FAILURES + 1)]
        assert [status for status, _ in found] == [401] * MOST_FAILURES + [429]
        assert "upwu_" not in json.dumps(found)


def test_tokens_are_kept_as_hashes_and_shown_once(fleet: Service) -> None:
    made = [fleet.do("POST", "/tokens", {})["token"], fleet.do("POST", "/users/eve", {"role": "viewer"})["token"]]
    database = b"".join(path.read_bytes() for path in fleet.folder.glob("fleet.db*"))
    assert not any(token.encode() in database for token in [*made, fleet.operator])
    listed = json.dumps([fleet.get("/tokens"), fleet.get("/users"), fleet.get("/audit")])
    assert not any(token in listed for token in made)
    fleet.do("DELETE", "/users/eve")
    assert fleet.call("GET", "/devices", token=made[1])[0] == 401


def test_every_change_is_on_record_and_a_refused_one_is_not(fleet: Service) -> None:
    before = fleet.get("/audit?limit=1000")["entries"]
    fleet.do("PUT", "/devices/gate/labels", {"labels": {"line": "2"}})
    assert fleet.call("PUT", "/groups/bad", {"expression": "labels."})[0] == 400
    after = fleet.get("/audit?limit=1000")["entries"][len(before) :]
    assert [(one["action"], one["details"]) for one in after] == [("label device", {"line": "2"})]
    assert after[0]["who"].startswith("operator")


def test_the_last_operator_stays(tmp_path: Path) -> None:
    with service(tmp_path) as fleet:
        (only,) = fleet.get("/users")["users"]
        status, said = fleet.call("DELETE", f"/users/{only['name']}")
        assert (status, "last operator" in said["detail"]) == (409, True)


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("labels.site = 'x'", "character 13"), ("nobody == 'x'", "unknown name nobody"), ("1 + 1", "a whole number"),
        ("os('rm')", "unknown function"), ("'" + "x" * 1200 + "'", "at most 1000"),
    ],
)  # fmt: skip
def test_a_wrong_expression_is_refused_with_its_place(fleet: Service, expression: str, words: str) -> None:
    status, said = fleet.call("PUT", "/groups/wrong", {"expression": expression})
    assert (status, words in said["detail"]) == (400, True), said
    assert all(one["name"] != "wrong" for one in fleet.get("/groups")["groups"])
