"""The files of examples/deploy, read strictly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from ruamel.yaml import YAML

from upwell.cloud.config import CloudConfig
from upwell.edge.config import AgentConfig
from upwell.shared.config.yaml import parse_yaml
from upwell.shared.routing.policy.policy import Policy

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "examples" / "deploy"
DOCKERFILE = DEPLOY / "container" / "Dockerfile"

CONFIGS: Mapping[str, type[BaseModel]] = {"cloud.yaml": CloudConfig, "agent.yaml": AgentConfig, "policy.yaml": Policy}


@cache
def documents(path: Path) -> list[dict[str, Any]]:
    """The objects of a manifest. A key given twice is an error."""
    return list(YAML(typ="safe", pure=True).load_all(path.read_text(encoding="utf-8")))


def only(path: Path, kind: str, name: str = "") -> dict[str, Any]:
    """The one object of that kind, and that name if it is given."""
    (found,) = (one for one in documents(path) if one["kind"] == kind and (not name or one["metadata"]["name"] == name))
    return found


def configs(manifest: Path) -> Mapping[str, Any]:
    """The files of a manifest's one ConfigMap as the program reads them, by name."""
    data = only(manifest, "ConfigMap")["data"]
    return {name: parse_yaml(text, CONFIGS[name], Path("/") / name) for name, text in data.items()}


def pod(manifest: Path) -> dict[str, Any]:
    """The pod of its workload."""
    (found,) = (one for one in documents(manifest) if one["kind"] in ("Deployment", "DaemonSet"))
    template = found["spec"]["template"]
    assert isinstance(template, dict)
    return template


def container(manifest: Path) -> dict[str, Any]:
    """The one container of that pod."""
    (found,) = pod(manifest)["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def stages() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """The stages of the Dockerfile by name, each with its instructions and their arguments."""
    text = DOCKERFILE.read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ").splitlines()
    name, inside = "", list[tuple[str, str]]()
    for line in joined:
        word, _, rest = line.partition(" ")
        if word == "FROM":
            yield name, inside
            name, inside = rest.rpartition(" AS ")[2], []
        inside.append((word, " ".join(rest.split())))
    yield name, inside
