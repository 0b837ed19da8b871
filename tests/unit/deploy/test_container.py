"""The Dockerfile: who runs what, from which files, on which ports."""

from __future__ import annotations

import fnmatch
import json
import re

import pytest

from tests.unit.deploy.manifests import DEPLOY, DOCKERFILE, ROOT, container, pod, stages
from upwell.cloud.config import CloudConfig
from upwell.edge.config import AgentConfig
from upwell.shared.config.addresses import parse_address
from upwell.shared.config.security import check_endpoint, check_exposure
from upwell.shared.config.yaml import load_yaml
from upwell.shared.routing.policy.policy import Policy

MANIFESTS = {"service": DEPLOY / "kubernetes" / "service.yaml", "agent": DEPLOY / "kubernetes" / "agent.yaml"}
STAGES = dict(stages())
every_image = pytest.mark.parametrize("image", ["service", "agent"])


def arguments(image: str, word: str) -> list[str]:
    return [rest for name, rest in STAGES[image] if name == word]


@every_image
def test_an_image_runs_as_the_user_that_the_pods_run_as(image: str) -> None:
    (user,) = arguments(image, "USER")
    context = pod(MANIFESTS[image])["spec"]["securityContext"]
    assert user == f"{context['runAsUser']}:{context['runAsGroup']}"
    assert context["fsGroup"] == context["runAsGroup"] > 1000
    assert STAGES[image].index(("USER", user)) > STAGES[image].index(("RUN", arguments(image, "RUN")[0]))


@every_image
def test_an_image_starts_what_the_pods_start(image: str) -> None:
    assert json.loads(arguments(image, "ENTRYPOINT")[0]) == ["upwell"]
    command = json.loads(arguments(image, "CMD")[0])
    assert command[:2] == container(MANIFESTS[image])["args"][:2]
    assert arguments(image, "STOPSIGNAL") == ["SIGTERM"]


def test_health_is_asked_where_it_is_answered() -> None:
    serve = load_yaml(DEPLOY / "cloud.yaml", CloudConfig).serve
    agent = load_yaml(DEPLOY / "agent.yaml", AgentConfig).agent
    assert agent.metrics is not None
    ports = {"service": parse_address(serve.listen_http[0]).port, "agent": parse_address(agent.metrics).port}
    for image, port in ports.items():
        (environment,) = arguments(image, "ENV")
        url = re.search(r"UPWELL_HEALTH=(\S+)", environment)
        assert url is not None
        assert f"127.0.0.1:{port}/" in url[1]
        assert "/opt/upwell/health.py" in arguments(image, "HEALTHCHECK")[0]
    exposed = [int(port) for port in arguments("service", "EXPOSE")[0].split()]
    assert exposed == sorted(parse_address(one).port for one in (*serve.listen, *serve.listen_http))


def test_what_is_copied_is_there_and_not_left_out() -> None:
    rules = (DOCKERFILE.parent / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    kept = [rule[1:] for rule in rules if rule.startswith("!")]
    copied = [rest.split()[:-1] for stage in STAGES.values() for word, rest in stage if word == "COPY"]
    own = [one for sources in copied for one in sources if not sources[0].startswith("--from") and one != "."]
    assert "constraints.txt" in own
    for one in (*own, *kept):
        assert (ROOT / one).exists()
        assert any(fnmatch.fnmatch(one, rule) for rule in kept)
    build = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    packages = re.search(r'^packages = \["(.*)"\]$', build, re.MULTILINE)
    assert packages is not None
    assert {one.partition("/")[0] for one in packages[1].split('", "')} <= set(kept)


def test_bases_are_named_by_tag_and_nothing_is_fetched_by_url() -> None:
    bases = {rest.split()[0] for stage in STAGES.values() for word, rest in stage if word == "FROM"}
    default = next(rest.partition("=")[2] for word, rest in STAGES[""] if word == "ARG")
    assert default in bases
    assert bases - set(STAGES) - {"${BASE}"} == {default}
    assert not default.endswith(":latest")
    assert ":" in default
    assert not any(
        word == "ADD" or "curl" in rest or "wget" in rest for stage in STAGES.values() for word, rest in stage
    )


def test_the_example_files_load_and_are_protected() -> None:
    serve = load_yaml(DEPLOY / "cloud.yaml", CloudConfig).serve
    check_exposure([*serve.listen, *serve.listen_http], serve.security)
    assert serve.metrics is not None
    assert parse_address(serve.metrics).is_loopback
    found = load_yaml(DEPLOY / "agent.yaml", AgentConfig)
    check_exposure(found.agent.listen, found.agent.security)
    assert found.cloud is not None
    check_endpoint(found.cloud.endpoint, found.cloud.security)
    assert found.policy == DEPLOY / "policy.yaml"
    load_yaml(DEPLOY / "policy.yaml", Policy)
