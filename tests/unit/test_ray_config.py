"""What of a cloud.yaml is not supported with Ray is said at once, and all of it. Without Ray."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from upwell.cloud.config import CloudConfig
from upwell.cloud.ray import serve
from upwell.shared.errors import ConfigError, ExtraMissing


def config(**serve: Any) -> CloudConfig:
    section = {"listen": ["[::]:8001"], "models": "models", "insecure": True, **serve}
    return CloudConfig.model_validate({"serve": section})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tls", {"cert": "a.pem", "key": "b.pem"}),
        ("tokens", "tokens.yaml"),
        ("listen_http", ["127.0.0.1:8080"]),
        ("metrics", "127.0.0.1:9100"),
        ("max_connection_age", "5m"),
        ("access_log", True),
        ("workers", 2),
        ("repository", {"control": True}),
        ("repository", {"watch": "1s"}),
        ("log", "json"),
        ("listen", ["127.0.0.1:8001"]),
        ("listen", ["[::]:0"]),
        ("listen", ["unix:/tmp/socket"]),
        ("listen", ["[::]:8001", "[::]:8002"]),
    ],
)
def test_what_ray_cannot_honour_is_refused(key: str, value: Any) -> None:
    serve.check(config())
    with pytest.raises(ConfigError, match=rf"serve\.{key}"):
        serve.check(config(**{key: value}))


def test_everything_wrong_is_said_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        serve.check(config(workers=2, access_log=True, listen=["127.0.0.1:1"]))
    assert all(key in str(caught.value) for key in ("serve.workers", "serve.access_log", "serve.listen"))


def test_the_open_port_has_to_be_meant() -> None:
    with pytest.raises(ConfigError, match="insecure"):
        serve.check(config(insecure=False))


def test_instances_left_out_count_the_cores_of_a_replica() -> None:
    assert serve.on_cpus(config(), 3).settings("any").instances == 3


@pytest.mark.parametrize("default", ["cpu", "cuda"])
def test_instances_left_out_count_what_the_model_takes(default: str) -> None:
    models: dict[str, dict[str, Any]] = {
        "wide": {"threads": 4, "device": "cpu"},
        "gpu": {"device": "cuda"},
        "provided": {"device": "cpu", "providers": ["cuda"]},
        "written": {"device": "cpu", "instances": 2},
    }
    given = {"serve": {"listen": ["[::]:8001"], "models": "models"}, "defaults": {"device": default}, "models": models}
    on_cpus = serve.on_cpus(CloudConfig.model_validate(given), 8)
    found = {name: on_cpus.settings(name).instances for name in (*models, "any")}
    assert found == {"wide": 2, "gpu": 1, "provided": 1, "written": 2, "any": 8 if default == "cpu" else 1}


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ExtraMissing, match=r"upwell\[ray\]"):
        serve.application(config(models=str(tmp_path)), serve.Scale())


def test_of_what_ray_says_of_a_failed_start_our_own_reason_is_told() -> None:
    message = """The deployment failed to start 3 times in a row. Error:
ray::ServeReplica:upwell:upwell.initialize_and_get_metadata() (pid=1, ip=127.0.0.2)
Traceback (most recent call last):
  File "/x/ray_replica.py", line 1, in __init__
upwell.shared.errors.ModelFailed: no model can be served: m version 1: it is broken

The above exception was the direct cause of the following exception:
RuntimeError: Traceback (most recent call last):
upwell.shared.errors.ModelFailed: no model can be served: m version 2: it is broken
"""
    assert serve.reason_in(message) == "no model can be served: m version 2: it is broken"
    assert serve.reason_in("no machine has 64 cores") == "no machine has 64 cores"


@pytest.mark.parametrize("args", [{"min_replicas": 3, "max_replicas": 2}, {"cpus": 0}, {"target": 0.0}])
def test_a_scale_that_cannot_be_is_refused(args: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="expected"):
        serve.Scale(**args)
