"""The keys of sinks in a file are those with which they are opened."""

from __future__ import annotations

from pathlib import Path

from upwell.pipelines.config.pipelines_check import parse_pipelines
from upwell.pipelines.config.sink_config import sink_settings
from upwell.pipelines.sinks.sink_settings import (
    JsonlSettings,
    KafkaSettings,
    MqttSettings,
    PicturesSettings,
    PluginSettings,
    WebhookSettings,
)
from upwell.shared.config.security import TlsFiles


def test_a_file_says_all_that_a_sink_is_opened_with(tmp_path: Path) -> None:
    files = "ca: ca.pem, cert: c.pem, key: k.pem, user: u, password_file: w"
    tls, password = TlsFiles(tmp_path / "c.pem", tmp_path / "k.pem", tmp_path / "ca.pem"), tmp_path / "w"
    written = {
        "{jsonl: {path: a.jsonl, limit: 1MiB}}": JsonlSettings(tmp_path / "a.jsonl", 1 << 20),
        "{pictures: {folder: p, limit: 2MiB}}": PicturesSettings(tmp_path / "p", 2 << 20),
        "{webhook: {url: 'https://h/x', secret_file: s, timeout: 3s, ca: ca.pem}}": WebhookSettings(
            "https://h/x", tmp_path / "s", tmp_path / "ca.pem", 3.0
        ),
        f"{{mqtt: {{broker: 'mqtts://b:1', topic: t, {files}}}}}": MqttSettings("mqtts://b:1", "t", tls, "u", password),
        f"{{kafka: {{brokers: ['k:9092'], topic: t, tls: true, {files}}}}}": KafkaSettings(
            ("k:9092",), "t", tls, "u", password
        ),
        "{plugin: {name: chat, options: {channel: dock}}}": PluginSettings("chat", {"channel": "dock"}),
    }
    text = f"pipelines: {{p: {{source: {{folder: in}}, sinks: [{', '.join(written)}]}}}}"
    sinks = parse_pipelines(text, tmp_path / "pipelines.yaml")[0].pipelines["p"].sinks
    assert [sink_settings(one) for one in sinks] == list(written.values())
