"""Sinks by their settings, those of other packages too."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from tests.unit.pipelines.sinks.outboxes import RecordingSink
from upwell.pipelines.sinks import sink_opening
from upwell.pipelines.sinks.base import Sink
from upwell.pipelines.sinks.sink_opening import open_sink, open_sinks
from upwell.pipelines.sinks.sink_settings import (
    JsonlSettings,
    KafkaSettings,
    MqttSettings,
    PicturesSettings,
    PluginSettings,
    SinkSettings,
    WebhookSettings,
)
from upwell.shared.errors import ConfigError

made: list[RecordingSink] = []


def make(*, channel: str, colour: str = "") -> Sink:
    """A sink of another package."""
    made.append(RecordingSink(f"chat:{channel}"))
    return made[-1]


def make_nothing() -> object:
    """Not a sink."""
    return object()


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def entry_points(**_: Any) -> Sequence[EntryPoint]:
        return [
            EntryPoint(name, f"{__name__}:{value}", sink_opening.GROUP)
            for name, value in (("chat", "make"), ("nothing", "make_nothing"), ("lost", "not_there"))
        ]

    monkeypatch.setattr(sink_opening, "entry_points", entry_points)
    monkeypatch.setitem(sys.modules, __name__, sys.modules[make.__module__])
    made.clear()


@pytest.mark.parametrize(
    ("settings", "leaves_device"),
    [
        (JsonlSettings(Path("events.jsonl")), False),
        (PicturesSettings(Path("pictures")), False),
        (WebhookSettings("https://localhost/hook"), True),
        (MqttSettings("mqtt://127.0.0.1:9", "site/{event}", timeout_s=0.1), True),
        (KafkaSettings(("127.0.0.1:9",), "events"), True),
        (PluginSettings("chat", {"channel": "dock"}), False),
    ],
)
def test_each_kind_is_opened_and_has_a_name_of_its_own(settings: SinkSettings, leaves_device: bool) -> None:
    sink = open_sink(settings)
    sink.close()
    assert sink.leaves_device is leaves_device
    assert sink.name.partition(":")[0] in type(settings).__name__.lower() or sink.name == "chat:dock"


def test_pipelines_that_set_the_same_sink_share_it() -> None:
    one, other = PluginSettings("chat", {"channel": "a"}), PluginSettings("chat", {"channel": "b"})
    opened = open_sinks({"dock": [one, other], "gate": [PluginSettings("chat", {"channel": "a"})]})
    assert opened["dock"][0] is opened["gate"][0]
    assert opened["dock"][0] is not opened["dock"][1]
    assert len(made) == 2


def test_where_one_cannot_be_opened_none_stays_open() -> None:
    with pytest.raises(ConfigError, match=r"there is no sink 'carrier-pigeon'; .* has: chat, lost, nothing"):
        open_sinks({"dock": [PluginSettings("chat", {"channel": "a"}), PluginSettings("carrier-pigeon")]})
    assert [sink.closed.is_set() for sink in made] == [True]


def test_of_two_sinks_of_one_name_none_stays_open() -> None:
    red = PluginSettings("chat", {"channel": "a", "colour": "red"})
    with pytest.raises(ConfigError, match="dock: chat:a appears twice"):
        open_sinks({"dock": [PluginSettings("chat", {"channel": "a"}), red]})
    assert [sink.closed.is_set() for sink in made] == [True, True]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (PluginSettings("chat", {"chanel": "a"}), "'chat' cannot be opened: .*unexpected keyword argument 'chanel'"),
        (PluginSettings("lost"), "'lost' cannot be opened"),
        (PluginSettings("nothing"), "which does not return a sink"),
    ],
)
def test_a_plugin_that_cannot_be_used_is_refused(settings: PluginSettings, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        open_sink(settings)


@pytest.mark.parametrize(
    ("settings", "package", "extra"),
    [
        (MqttSettings("mqtt://localhost", "a"), "paho", "pipelines"),
        (KafkaSettings(("localhost:9092",), "a"), "confluent_kafka", "kafka"),
    ],
)
def test_a_package_that_is_missing_is_named_with_its_extra(
    settings: SinkSettings, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, package, None)
    for name in ("mqtt", "kafka"):
        monkeypatch.delitem(sys.modules, f"upwell.pipelines.sinks.{name}", raising=False)
    with pytest.raises(ConfigError, match=rf"pip install 'upwell\[{extra}\]'"):
        open_sink(settings)
