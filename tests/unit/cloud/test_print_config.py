"""`upwell serve --print-config`: what it prints reads back as the same configuration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from upwell.cloud.cli import printed
from upwell.cloud.config import CloudConfig
from upwell.shared.config.yaml import parse_yaml

LEAST = "version: 1\nserve: {listen: ['127.0.0.1:0'], models: models}\n"
FULL = """
version: 1
serve:
  listen: ["0.0.0.0:8001", "unix:/run/upwell.sock"]
  listen_http: ["0.0.0.0:8000"]
  models: models
  repository: {watch: 50ms, control: true}
  tls: {cert: s.pem, key: s.key, client_ca: ca.pem}
  tokens: tokens.yaml
  insecure: true
  max_message: 1000000B
  drain: 1.5s
  workers: 4
  max_connection_age: 90s
  limits: {rate: 100/min, burst: 7, concurrency: 3, bytes: 10MB/day}
defaults: {instances: 2, threads: 3, max_queue: 0, versions: latest}
models:
  digits-large: {engine: torch, class: digits.LargeNet, max_batch: 32, arguments: {width: null, deep: [1, {a: 2.5}]}}
  plain: {threads: 4, versions: [1, 3]}
"""


@pytest.mark.parametrize("text", [LEAST, FULL])
def test_what_is_printed_says_the_same(text: str, tmp_path: Path) -> None:
    config = parse_yaml(text, CloudConfig, tmp_path / "cloud.yaml")
    for place, again in ((tmp_path, printed(config, as_json=False)), (Path("/"), printed(config, as_json=True))):
        found = parse_yaml(again, CloudConfig, place / "other.yaml")
        assert found == config.model_copy(update={"serve": found.serve})
        assert found.serve.connection_age_s == config.serve.connection_age_s
        assert found.serve.model_copy(update={"max_connection_age": config.serve.max_connection_age}) == config.serve


def test_every_default_is_put_in_and_secrets_are_not(tmp_path: Path) -> None:
    (tmp_path / "s.key").write_text("secret")
    (tmp_path / "tokens.yaml").write_text("secret")
    found = json.loads(printed(parse_yaml(FULL, CloudConfig, tmp_path / "cloud.yaml"), as_json=True))
    assert found["serve"]["tls"]["key"] == str(tmp_path / "s.key")
    assert "secret" not in json.dumps(found)
    least = json.loads(printed(parse_yaml(LEAST, CloudConfig), as_json=True))
    assert (least["serve"]["drain"], least["serve"]["max_message"], least["serve"]["workers"]) == ("30s", "64MiB", 1)
    assert least["serve"]["max_connection_age"] == "0s"
    assert least["defaults"]["max_queue"] == 64
