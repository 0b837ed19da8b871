"""`agent.yaml`: what it comes to, and every error at its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from upwell.edge.config import AgentConfig
from upwell.edge.models.model_config import ModelSection
from upwell.shared.config.security import TlsFiles
from upwell.shared.config.yaml import as_yaml, load_yaml, parse_yaml
from upwell.shared.errors import ConfigError

EDGE = "models: {m: {edge: {file: m.onnx}}}"


def config(text: str, path: Path | None = None) -> AgentConfig:
    return parse_yaml(text, AgentConfig, path)


def test_the_least_that_works_has_the_documented_defaults() -> None:
    least = config(EDGE)
    assert least.agent.name == "agent"
    assert least.agent.listen == ("127.0.0.1:8001",)
    assert (least.agent.metrics, least.agent.state_dir, least.agent.insecure) == (None, None, False)
    assert (least.agent.max_message, least.agent.max_requests) == (64 << 20, 32)
    assert (least.cloud, least.policy) == (None, None)
    assert least.models["m"].split == "off"


def test_relative_paths_start_at_the_file_that_names_them(tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(
        "agent: {state_dir: state, tokens: t.yaml, tls: {cert: c.pem, key: k.pem, client_ca: ca.pem}}\n"
        "cloud: {endpoint: 'localhost:1', tls: {ca: ca.pem}, token_file: token}\n"
        "policy: sub/policy.yaml\n"
        "models:\n"
        "  a: {edge: {bundle: models/a, accelerator: {provider: vendor, library: lib/vendor.so}}}\n"
        "  b: {edge: {file: ../b.onnx}}\n"
        "  c: {edge: {file: /abs/c.onnx}}\n"
    )
    found = load_yaml(path, AgentConfig)
    edges = {name: model.edge for name, model in found.models.items()}
    assert edges["a"] is not None
    assert edges["b"] is not None
    assert edges["c"] is not None
    assert found.cloud is not None
    assert found.agent.state_dir == tmp_path / "state"
    assert found.agent.security.tokens == tmp_path / "t.yaml"
    assert found.agent.security.tls == TlsFiles(tmp_path / "c.pem", tmp_path / "k.pem", tmp_path / "ca.pem")
    assert found.cloud.security.tls == TlsFiles(None, None, tmp_path / "ca.pem")
    assert found.cloud.security.token_file == tmp_path / "token"
    assert found.policy == tmp_path / "sub/policy.yaml"
    assert edges["a"].bundle == tmp_path / "models/a"
    assert edges["b"].file == tmp_path.parent / "b.onnx"
    assert edges["c"].file == Path("/abs/c.onnx")
    assert [one.library for one in edges["a"].accelerator] == [tmp_path / "lib/vendor.so"]


ERRORS = [
    ("models: {}", "1:9: models: "),
    ("agent: {}", "1:1: models: this key is missing"),
    ("models: {m: {}}", "1:13: models.m: expected `edge`, `cloud` or both"),
    (
        "models: {m: {edge: {}}}",
        "1:20: models.m.edge: expected `bundle` (a folder or archive), `file` (a model file) or `updates`",
    ),
    ("models: {m: {edge: {bundle: b, file: f}}}", "1:20: models.m.edge: expected either `bundle`"),
    ("models: {m: {edge: {file: f, runtime: torch}}}", "1:39: models.m.edge.runtime: expected 'onnx' or 'tflite'"),
    ("models: {m: {edge: {file: f, thread: 1}}}", "1:30: models.m.edge.thread: unknown key; did you mean 'threads'?"),
    ("models: {m: {edge: {file: f, threads: 0}}}", "1:39: models.m.edge.threads: expected 1 or more, got 0"),
    ("models: {m: {edge: {file: ''}}}", "1:27: models.m.edge.file: expected a path, got ''"),
    ("models: {m: {edge: {file: f}, split: 3}}", "1:38: models.m.split: "),
    ("models: {m: {cloud: {model: ''}}}", "1:29: models.m.cloud.model: "),
    ("models: {m: {cloud: {}}}", "1:21: models.m.cloud.model: this key is missing"),
    (EDGE + "\nagent: {listen: 127.0.0.1:1}", "2:17: agent.listen: expected a list"),
    (EDGE + "\nagent: {listen: []}", "2:17: agent.listen: "),
    (
        EDGE + "\nagent: {listen: ['127.0.0.1:81'], metrics: '127.0.0.1:81'}",
        "2:8: agent: 127.0.0.1:81 is repeated in `listen` and `metrics`",
    ),
    (EDGE + "\nagent: {max_message: 3GB}", "2:22: agent.max_message: expected 2147483647 or less, got '3GB'"),
    (EDGE + "\nagent: {listen: [nowhere]}", "2:18: agent.listen[0]: 'nowhere' is not an address; expected HOST:PORT"),
    (EDGE + "\nagent: {listen: ['127.0.0.1:99999']}", "2:18: agent.listen[0]: '127.0.0.1:99999' is not an address"),
    (EDGE + "\nagent: {max_message: 64}", "2:22: agent.max_message: expected a size"),
    (EDGE + "\nagent: {max_message: 0}", "2:22: agent.max_message: expected more than 0, got 0"),
    (EDGE + "\nagent: {max_requests: 0}", "2:23: agent.max_requests: expected 1 or more"),
    (EDGE + "\nagent: {max_requests: true}", "2:23: agent.max_requests: expected a whole number, got true"),
    (EDGE + "\nagent: {flights: '9'}", "2:18: agent.flights: expected a whole number, got '9'"),
    (EDGE + "\nagent: {limits: {rate: 1/s, burst: true}}", "2:36: agent.limits.burst: expected a whole number"),
    (EDGE + "\nagent: {limits: {concurrency: '9'}}", "2:31: agent.limits.concurrency: expected a whole number"),
    ("models: {a: {edge: {file: a.onnx, threads: true}}}", "1:44: models.a.edge.threads: expected a whole number"),
    ("models: {a: {edge: {file: a.onnx, instances: '2'}}}", "1:46: models.a.edge.instances: expected a whole number"),
    ("models: {a: {edge: {file: a.onnx, batch: 2.0}}}", "1:42: models.a.edge.batch: expected a whole number, got 2.0"),
    (EDGE + "\nagent: {name: ''}", "2:15: agent.name: "),
    (EDGE + "\nagent: {metrics: 9464}", "2:18: agent.metrics: expected text, got 9464"),
    (EDGE + "\nagent: {metrics: 'unix:/run/metrics.sock'}", "2:18: agent.metrics: "),
    (EDGE + "\nagent: {tls: {cert: c}}", "2:14: agent.tls.key: this key is missing"),
    (EDGE + "\nagent: {insecure: perhaps}", "2:19: agent.insecure: expected true or false, got 'perhaps'"),
    (EDGE + "\ncloud: {}", "2:8: cloud.endpoint: this key is missing"),
    (EDGE + "\ncloud: {endpoint: 'http://x'}", "2:19: cloud.endpoint: requests to http://x would cross the network"),
    (
        EDGE + "\ncloud: {endpoint: 'x:1', tls: {cert: c}}",
        "2:31: cloud.tls: `cert` and `key` go together; write both",
    ),
    (EDGE + "\ncloud: {endpoint: 'x:1', tls: {key: c}}", "2:31: cloud.tls: `cert` and `key` go together"),
    (EDGE + "\nrelease: {source: r, root: r.json}", "2:10: release: fetched files need a folder"),
    (
        EDGE + "\nrelease: {source: 'http://x/', root: r.json}",
        "2:19: release.source: 'http://x/metadata' is not protected",
    ),
    (
        "models: {m: {edge: {updates: {source: u}}}}\nagent: {state_dir: s}\nrelease: {source: r, root: r.json}",
        "1:30: models.m.edge.updates: `release` alone decides what is installed; "
        "expected either `release` or `updates`",
    ),
    (EDGE + "\nversion: 2", "2:10: version: expected 1, got 2"),
    (
        EDGE + "\nspool: {}",
        "2:1: spool: unknown key; expected one of: agent, cloud, fleet, models, pipelines, policy, release, version",
    ),
]


@pytest.mark.parametrize(("text", "expected"), ERRORS)
def test_an_error_says_where_and_what_would_be_right(text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as error:
        config(text)
    assert str(error.value).startswith(expected)
    assert len(error.value.problems) == 1


def test_all_errors_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        config(
            "version: 3\nagent: {listen: [x], max_requests: none}\n"
            "models:\n  a: {edge: {bundle: x, file: y}}\n  b: {}\n"
        )
    assert [(problem.line, problem.key) for problem in error.value.problems] == [
        (1, "version"),
        (2, "agent.listen[0]"),
        (2, "agent.max_requests"),
        (4, "models.a.edge"),
        (5, "models.b"),
    ]


def test_every_model_that_only_a_cloud_could_serve_is_named_where_it_stands() -> None:
    with pytest.raises(ConfigError) as error:
        config("models:\n  a: {cloud: {model: x}}\n  b: {cloud: {model: y}}\n")
    assert [(problem.line, problem.key) for problem in error.value.problems] == [(2, "models.a"), (3, "models.b")]


def test_a_model_in_the_cloud_alone_needs_no_edge() -> None:
    found = config("cloud: {endpoint: 'localhost:1'}\nmodels: {m: {cloud: {model: x}}}")
    assert found.models["m"] == ModelSection.model_validate({"cloud": {"model": "x"}})


FULL = """
version: 1
agent:
  name: dock ü
  listen: ["0.0.0.0:8001", "unix:/run/upwell.sock"]
  tls: {cert: c.pem, key: k.pem}
  tokens: tokens.yaml
  limits: {rate: 100/min, burst: 7, bytes: 10MB/day}
  max_message: 1000000B
  state_dir: state
  spool: {limit: 5MB, max_age: 1.5h, results: results.jsonl}
  trust: {keys: [key.pem]}
  cases: {to: /mnt/cases, every: 90s}
  otlp: {endpoint: "http://127.0.0.1:4318", every: 30s}
  traces: {endpoint: "http://127.0.0.1:4318", sample: 20%}
cloud: {endpoint: "localhost:1", fallbacks: ["dns:///b:2"], tls: {ca: ca.pem}, token_file: token}
fleet: {endpoint: "https://fleet:8443", ca: ca.pem, labels: {site: "a: b"}}
policy: policy.yaml
models:
  a:
    edge: {bundle: a, threads: 2, accelerator: {provider: vendor, library: vendor.so, options: {level: 3, fast: true}}}
    cloud: {model: a-large}
    split: auto
  b: {cloud: {model: b}, split: {plan: plans/b, memory: 64MiB}}
"""


@pytest.mark.parametrize("text", [EDGE, FULL])
def test_what_is_printed_of_a_configuration_says_the_same_elsewhere(text: str, tmp_path: Path) -> None:
    found = config(text, tmp_path / "agent.yaml")
    for again in (as_yaml(found.as_written()), json.dumps(found.as_written())):
        assert config(again, tmp_path / "other" / "agent.yaml") == found


def test_what_is_printed_has_the_defaults_and_no_credential_of_a_source(tmp_path: Path) -> None:
    least = config(EDGE).as_written()
    assert (least["agent"]["listen"], least["agent"]["spool"]["limit"]) == (["127.0.0.1:8001"], "256MiB")
    sources = (
        "agent: {state_dir: s}\nmodels: {m: {edge: {updates: {source: 'https://h/m.bundle.tar?sig=secret'}}}}",
        "agent: {state_dir: s}\nrelease: {source: 'https://h/r?sig=secret', root: root.json}\nmodels: {m: {edge: {}}}",
    )
    for text in sources:
        printed = as_yaml(config(text, tmp_path / "agent.yaml").as_written())
        assert "https://h/" in printed
        assert "secret" not in printed
