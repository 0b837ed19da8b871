"""Check examples/deploy against published schemas, without a cluster: `make check-deploy`.

Kubernetes' own objects are checked against the JSON schemas in the package kubernetes-validate: the oldest version
that has all they use, and the newest. KServe's are checked against the types of its package kserve, and against those
schemas for parts that are Kubernetes'. The Dockerfile is checked by hadolint. To validate the check itself, files
with a misspelt key must be refused. Exit code 1 if anything is wrong.
"""

from __future__ import annotations

import ast
import copy
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml
from referencing import Registry, Resource

DEPLOY = Path(__file__).resolve().parent.parent / "examples" / "deploy"
OLDEST = "1.27"
KSERVE = "serving.kserve.io/"
_PLAIN = {"str": "string", "int": "integer", "bool": "boolean", "float": "number", "object": "object"}
_REQUIRED = re.compile(r"Invalid value for `(\w+)`, must not be `None`")


@dataclass(frozen=True)
class Model:
    """A type of the package kserve: field -> type, field -> YAML key, and the required fields."""

    types: Mapping[str, str]
    keys: Mapping[str, str]
    required: frozenset[str]


@cache
def models() -> Mapping[str, Model]:
    """All models by name, parsed from their source: importing them takes dozens of packages."""
    spec = importlib.util.find_spec("kserve")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the package kserve is not installed; run `make check-deploy`")
    found = {}
    for path in Path(spec.submodule_search_locations[0], "models").glob("v1*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef):
                tables = {
                    one.targets[0].id: ast.literal_eval(one.value)
                    for one in node.body
                    if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name)
                }
                required = frozenset(_REQUIRED.findall(text))
                found[node.name] = Model(tables["openapi_types"], tables["attribute_map"], required)
    return found


@cache
def kubernetes_types() -> tuple[str, Mapping[str, str], Any]:
    """Address of the newest schemas' definitions, the name there of each type by its short name, and a registry."""
    newest = kubernetes_validate.latest_version()
    folder = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema" / f"v{newest}-local-strict"
    definitions = json.loads((folder / "_definitions.json").read_text(encoding="utf-8"))
    resource = Resource.from_contents(definitions)
    names: dict[str, str] = {}
    for name in definitions["$defs"]:
        group, version, kind = name.split(".")[-3:]
        if group in ("core", "meta") and version == "v1":
            names[f"V1{kind}"] = name
    return definitions["$id"], names, resource @ Registry()


def schema_of(kind: str) -> dict[str, Any] | bool:
    """The JSON schema of a type as kserve writes it: `str`, `list[V1Container]`, `V1beta1ModelSpec`.

    False, which no value matches, for a type that neither kserve nor Kubernetes defines here: none of them is used.
    """
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    if inner := re.fullmatch(r"list\[(.+)\]", kind):
        return {"type": "array", "items": schema_of(inner[1])}
    if inner := re.fullmatch(r"dict\(str, (.+)\)", kind):
        return {"type": "object", "additionalProperties": schema_of(inner[1])}
    if kind in models():
        return {"$ref": f"#/$defs/{kind}"}
    address, names, _ = kubernetes_types()
    if kind in names:
        return {"$ref": f"{address}#/$defs/{names[kind]}"}
    return False


def schema_with_all_types(kind: str) -> dict[str, Any]:
    """The schema of the type `kind`, with every type of kserve beside it."""
    described = {
        name: {
            "type": "object",
            "properties": {model.keys[field]: schema_of(type_) for field, type_ in model.types.items()},
            "required": sorted(model.keys[field] for field in model.required if field in model.keys),
            "additionalProperties": False,
        }
        for name, model in models().items()
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$ref": f"#/$defs/{kind}", "$defs": described}


def problem(thing: dict[str, Any]) -> str:
    """What is wrong with an object; empty if nothing is."""
    try:
        if thing["apiVersion"].startswith(KSERVE):
            kind = thing["apiVersion"].removeprefix(KSERVE).replace("v", "V", 1) + thing["kind"]
            *_, registry = kubernetes_types()
            jsonschema.Draft202012Validator(schema_with_all_types(kind), registry=registry).validate(thing)
        else:
            for version in (OLDEST, kubernetes_validate.latest_version()):
                kubernetes_validate.validate(thing, version, strict=True)
    except jsonschema.ValidationError as error:  # the base of kubernetes_validate's own
        return f"{'.'.join(map(str, error.absolute_path))}: {error.message[:300]}"
    return ""


def misspelt(thing: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Copies of an object, each with one mistake in its `spec`, at the top and at depth."""
    wrong = copy.deepcopy(thing)
    wrong["spec"]["no_such_key"] = 1
    yield wrong
    containers = thing["spec"].get("template", thing)["spec"].get("containers")
    if containers:
        wrong = copy.deepcopy(thing)
        wrong["spec"].get("template", wrong)["spec"]["containers"][0]["securityContext"]["runAsNotRoot"] = True
        yield wrong


def main() -> int:
    """Check everything and print what was checked."""
    failed = 0
    for path in sorted(DEPLOY.glob("k*/*.yaml")):
        for thing in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            wrong = problem(thing)
            if not wrong and "spec" in thing and not all(problem(one) for one in misspelt(thing)):
                wrong = "a misspelt key is not noticed: the check checks nothing"
            failed += bool(wrong)
            print(f"{path.relative_to(DEPLOY)}: {thing['kind']} {thing['metadata']['name']}: {wrong or 'ok'}")
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, DEPLOY / "container" / "Dockerfile"], check=False)  # noqa: S603  a fixed command
    print(f"container/Dockerfile: {'ok' if done.returncode == 0 else 'see above'}")
    return 1 if failed or done.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
