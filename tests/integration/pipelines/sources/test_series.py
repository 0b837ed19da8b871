"""Series of numbers: files as they are, a real mosquitto, and whole pipelines whose model is asked about windows."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnx.helper
import pytest
import typer
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from typer.testing import CliRunner, Result

from tests.faults.clouds import ScriptedCloud, status
from tests.integration.pipelines.sinks.brokers import WAIT_S, Broker, broker, needs_mosquitto
from tests.pipelines_media import until
from tests.pipelines_run import pipelines_text, running_pipelines
from tests.unit import models_for_tests as models
from upwell.pipelines.config.pipelines_check import parse_pipelines
from upwell.pipelines.config.source_config import source_settings
from upwell.pipelines.frame import Frame
from upwell.pipelines.sources import mqtt
from upwell.pipelines.sources.base import Source, SourceEnded, SourceState
from upwell.pipelines.sources.source_opening import open_source
from upwell.pipelines.sources.source_settings import (
    MqttTopicSettings,
    Patience,
    SeriesFileSettings,
    SeriesShape,
    SeriesTopicSettings,
)
from upwell.pipelines.sources.windows import WindowShape
from upwell.shared.config.security import TlsFiles
from upwell.shared.errors import ConfigError
from upwell.shared.oip.codec.converters import serialize_infer_response
from upwell.shared.oip.dataplane import InferRequest, InferResponse
from upwell.shared.tensors import Array
from upwell.tools.pipeline_test_cli import trial

pytest.importorskip("cel_expr_python")

TOPIC = "machines/7"
SHAPE = SeriesShape(("x", "y"), WindowShape(10.0, 4, 4, 0.25))
QUICK = Patience(first_pause_s=0.02, longest_pause_s=0.1)
BEGAN = 1_795_000_000


def rows(count: int, without: tuple[int, ...] = (), began: float = BEGAN) -> list[dict[str, float]]:
    """Ten samples a second; `y` counts down as `x` counts up."""
    return [{"time": began + index / 10, "x": index, "y": -index} for index in range(count) if index not in without]


def as_csv(path: Path, samples: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(["time, x, y", *(f"{one['time']},{one['x']},{one['y']}" for one in samples)]) + "\n")
    return path


def all_of(source: Source) -> list[Frame]:
    """The frames up to the end."""
    found: list[Frame] = []
    with closing(source):
        while True:
            try:
                frame = source.next(1)
            except SourceEnded:
                return found
            if frame is not None:
                found.append(frame)


def xs(frame: Frame) -> list[float]:
    assert frame.window is not None
    np.testing.assert_allclose(frame.window[:, 1], -frame.window[:, 0], atol=1e-6)
    return [round(float(one), 3) for one in frame.window[:, 0]]


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_a_file_is_cut_into_windows_and_those_with_a_gap_are_counted(tmp_path: Path, suffix: str) -> None:
    samples = rows(20, without=(5, 6, 7))
    path = as_csv(tmp_path / "a.csv", samples)
    if suffix == "jsonl":
        path = tmp_path / "a.jsonl"
        path.write_text("".join(json.dumps(one) + "\n" for one in samples))
    source = open_source(SeriesFileSettings(path, SHAPE))
    frames = all_of(source)
    assert [xs(one) for one in frames] == [[0, 1, 2, 3], [8, 9, 10, 11], [12, 13, 14, 15], [16, 17, 18, 19]]
    assert [round(one.captured_unix_s - BEGAN, 3) for one in frames] == [0.3, 1.1, 1.5, 1.9]
    assert [one.number for one in frames] == [1, 3, 4, 5]
    assert [one.at_s for one in frames] == [one.captured_unix_s for one in frames]
    status = source.status
    assert (status.captured, status.given, status.gap, status.undecodable) == (5, 4, 1, 0)
    assert (status.state, status.decoder, status.explained) == (SourceState.ENDED, suffix, "")


def test_where_the_clock_was_set_back_within_a_file_time_goes_on(tmp_path: Path) -> None:
    """Else `every` and `at_least` would wait until the clock has caught up."""
    path = as_csv(tmp_path / "a.csv", [*rows(8), *rows(8, began=BEGAN - 3600)])
    frames = all_of(open_source(SeriesFileSettings(path, SHAPE)))
    assert [round(one.captured_unix_s - BEGAN, 3) for one in frames] == [0.3, 0.7, -3599.7, -3599.3]
    assert [round(one.at_s - BEGAN, 3) for one in frames] == [0.3, 0.7, 0.7, 1.1]


def test_a_window_with_a_gap_may_be_given_and_says_how_much_is_missing(tmp_path: Path) -> None:
    path = as_csv(tmp_path / "a.csv", rows(12, without=(5, 6, 7)))
    shape = SeriesShape(SHAPE.fields, SHAPE.cut, fills=True)
    frames = all_of(open_source(SeriesFileSettings(path, shape)))
    assert [one.missing for one in frames] == [0, 3, 0]
    assert [str(one) for one in xs(frames[1])] == ["4.0", "nan", "nan", "nan"]


@pytest.mark.parametrize(
    ("stamps", "unit"),
    [
        (["2026-11-24T10:00:00.000Z", "2026-11-24T11:00:00.1+01:00", "2026-11-24T10:00:00.200+00:00"], 1.0),
        ([1795514400000, 1795514400100.0, "1795514400200"], 1e-3),
    ],
)
def test_a_time_stamp_is_a_number_of_its_unit_or_iso_8601(tmp_path: Path, stamps: list[object], unit: float) -> None:
    path = tmp_path / "a.ndjson"
    path.write_text("".join(json.dumps({"at": {"t": at}, "v": [1], "x": 1}) + "\n" for at in stamps))
    shape = SeriesShape(("x",), WindowShape(10.0, 3, 3, 0.25), "at.t", unit)
    (frame,) = all_of(open_source(SeriesFileSettings(path, shape)))
    assert frame.captured_unix_s == pytest.approx(1795514400.2, abs=1e-3)


def test_milliseconds_that_are_taken_for_seconds_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = as_csv(tmp_path / "a.csv", rows(4, began=1_795_514_400_000))
    assert all_of(open_source(SeriesFileSettings(path, SHAPE))) == []
    assert "a.csv:2: skipped a sample: 'time': 1795514400000" in caplog.text
    assert "would be 1.8e+12 s; expected another `unit`" in caplog.text


BAD_ROWS = [
    "", "no row", "1,2", "nan,1,1", "{}", "5000,inf,1", "2026-01-01T00:00:00,1,1", "9" * 400 + ",1,1", "1e300,1,1",
    "1795514400000,1,1", '"1,2\n3",1,1',
]  # fmt: skip


def test_rows_that_cannot_be_read_are_left_out_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = as_csv(tmp_path / "a.csv", rows(4))
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:3], *BAD_ROWS, *lines[3:]]))
    source = open_source(SeriesFileSettings(path, SHAPE))
    assert [xs(one) for one in all_of(source)] == [[0, 1, 2, 3]]
    assert source.status.undecodable == len(BAD_ROWS) - 1  # an empty line is none
    assert caplog.text.count("skipped a sample") == 1


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.csv", b"time,x,y\n1,2,\xff\n", "it is not UTF-8 text"),
        ("a.jsonl", b"[" * 2_000_000, "a line has more than 1048576 characters"),
        ("none.csv", None, "No such file or directory"),
    ],
)
def test_a_file_that_breaks_off_says_why(tmp_path: Path, name: str, content: bytes | None, why: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    source = open_source(SeriesFileSettings(tmp_path / name, SHAPE))
    assert all_of(source) == []
    assert (source.status.state, source.status.explained) == (SourceState.ENDED, why)


class Sensor:
    """Publishes to the topic, and knows when the broker has it."""

    def __init__(self, port: int) -> None:
        self._client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()

    def say(self, *samples: object, qos: int = 1) -> None:
        for one in samples:
            body = one if isinstance(one, bytes) else json.dumps(one)
            self._client.publish(TOPIC, body, qos).wait_for_publish(WAIT_S)

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Broker]:
    with broker(tmp_path, ["allow_anonymous true", "log_type all"]) as found:
        yield found


def subscribed(there: Broker, keep: Any = "latest", times: int = 1) -> Source:
    topic = MqttTopicSettings(f"mqtt://127.0.0.1:{there.port}", TOPIC, keep=keep, patience=QUICK)
    source = open_source(SeriesTopicSettings(topic, SHAPE))
    until(lambda: there.log_text().count("Sending SUBACK to upwell") >= times, "subscribed")
    return source


@needs_mosquitto
def test_messages_are_windows_captured_when_their_last_point_was(there: Broker) -> None:
    with closing(subscribed(there)) as source, closing(Sensor(there.port)) as sensor:
        began = time.time() - 30
        samples = rows(9, without=(5, 6, 7), began=began)
        sensor.say(*samples[:3], samples[3:5])
        frame = source.next(WAIT_S)
        assert frame is not None
        assert xs(frame) == [0, 1, 2, 3]
        assert frame.captured_unix_s == pytest.approx(began + 0.3, abs=0.01)
        assert time.monotonic() - frame.captured_s == pytest.approx(29.7, abs=WAIT_S)
        sensor.say(b"no json", {"time": began}, [1], samples[5:])
        until(lambda: source.status.undecodable == 3 and source.status.gap == 1, "all have come")
        assert source.next(0) is None
        assert (source.status.captured, source.status.state) == (5, SourceState.LIVE)


@needs_mosquitto
def test_of_several_windows_the_latest_is_given_and_no_sample_is_lost(there: Broker) -> None:
    with closing(subscribed(there)) as source, closing(Sensor(there.port)) as sensor:
        sensor.say(*rows(14))
        until(lambda: source.status.superseded == 2, "all have come")
        frame = source.next(WAIT_S)
        assert frame is not None
        assert xs(frame) == [8, 9, 10, 11]
        sensor.say(*rows(16)[14:])
        frame = source.next(WAIT_S)
        assert frame is not None
        assert xs(frame) == [12, 13, 14, 15]
        assert (source.status.captured, frame.number) == (4, 4)


@needs_mosquitto
def test_where_all_are_kept_every_window_comes_once_over_a_restart_of_the_broker(there: Broker) -> None:
    samples = rows(28)
    with closing(subscribed(there, "all")) as source:
        with closing(Sensor(there.port)) as sensor:
            sensor.say(*samples[:10])
            until(lambda: len(source._waiting) == 1, "a window waits")  # type: ignore[attr-defined]
        there.stop()
        until(lambda: source.status.state is SourceState.LOST, "lost")
        there.start()
        until(lambda: there.log_text().count("Sending SUBACK to upwell") >= 2, "subscribed again")
        with closing(Sensor(there.port)) as sensor:
            sensor.say(*samples[10:])
            found: list[list[float]] = []
            until(lambda: _taken(source, found) == 7, f"all windows: {found}")
        assert found == [[float(4 * n + k) for k in range(4)] for n in range(7)]
        assert source.next(0) is None
        assert (source.status.captured, source.status.given) == (7, 7)


@needs_mosquitto
def test_where_all_are_kept_a_message_may_complete_any_number_of_windows(there: Broker) -> None:
    """A gateway may send the samples of a minute at once."""
    with closing(subscribed(there, "all")) as source, closing(Sensor(there.port)) as sensor:
        sensor.say(rows(200))
        found: list[list[float]] = []
        until(lambda: _taken(source, found) == 50, f"all windows: {source.status}")
        assert found == [[float(4 * n + k) for k in range(4)] for n in range(50)]
        assert (source.status.captured, source.status.superseded) == (50, 0)


@needs_mosquitto
def test_windows_of_one_message_take_no_more_memory_than_may_wait(
    there: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mqtt, "_WAITING_BYTES", 20 * (8 * 4 * 2 + 1024))
    with closing(subscribed(there, "all")) as source, closing(Sensor(there.port)) as sensor:
        sensor.say(rows(200))
        found: list[list[float]] = []
        until(lambda: _taken(source, found) == 20, f"the last windows: {source.status}")
        assert found == [[float(4 * n + k) for k in range(4)] for n in range(30, 50)]
        assert (source.status.captured, source.status.superseded) == (50, 30)


@needs_mosquitto
def test_a_sensor_that_is_silent_is_said_to_send_no_samples(there: Broker) -> None:
    topic = MqttTopicSettings(f"mqtt://127.0.0.1:{there.port}", TOPIC, patience=replace(QUICK, silent_s=0.2))
    with closing(open_source(SeriesTopicSettings(topic, SHAPE))) as source:
        until(lambda: source.status.explained == "no new sample for 0.2 s", f"it is silent: {source.status}")


def _taken(source: Source, found: list[list[float]]) -> int:
    if (frame := source.next(0.05)) is not None:
        found.append(xs(frame))
    return len(found)


def windows_model(folder: Path, size: int = 4) -> None:
    """A bundle: is the mean of a window [size, 2] above zero?"""
    folder.mkdir(parents=True)
    nodes = [
        onnx.helper.make_node("ReduceMean", ["x"], ["mean"], axes=[1, 2], keepdims=0),
        onnx.helper.make_node("Sigmoid", ["mean"], ["up"]),
        onnx.helper.make_node("Sub", ["one", "up"], ["down"]),
        onnx.helper.make_node("Unsqueeze", ["down", "last"], ["a"]),
        onnx.helper.make_node("Unsqueeze", ["up", "last"], ["b"]),
        onnx.helper.make_node("Concat", ["a", "b"], ["p"], axis=1),
    ]
    constants: dict[str, Array] = {"one": np.ones((), np.float32), "last": np.array([1], np.int64)}
    inputs, outputs = [models.tensor("x", ["rows", size, 2])], [models.tensor("p", ["rows", 2])]
    models.save(folder / "model.onnx", nodes, inputs, outputs, constants)
    signature = (
        f"{{inputs: {{x: {{kind: tensor, dtype: FP32, shape: [-1, {size}, 2]}}}}, "
        "outputs: {p: {kind: probabilities, labels: [down, up]}}}"
    )
    (folder / "model.yaml").write_text(f"version: 1\nsignature: {signature}\n")


def write_agent(folder: Path) -> Path:
    windows_model(folder / "swing")
    config = {
        "version": 1,
        "agent": {"listen": ["127.0.0.1:0"], "state_dir": "state"},
        "models": {"swing": {"edge": {"bundle": "swing", "runtime": "onnx"}}},
    }
    path = folder / "agent.yaml"
    path.write_text(json.dumps(config))
    return path


APP = typer.Typer()
APP.command()(trial)
EVENTS = [
    {"name": "up", "on": "frame", "where": 'frame.swing.label == "up"'},
    {"name": "beat", "on": "every 1h", "where": "frame.missing == 0"},
]


def test_a_pipeline_asks_about_windows_and_every_window_has_a_fate(tmp_path: Path) -> None:
    samples: list[dict[str, Any]] = [{"time": BEGAN + n / 10, "x": 1 - 2 * (n // 8 % 2), "y": 0} for n in range(40)]
    del samples[33:37]
    as_csv(tmp_path / "a.csv", samples)
    series = {"file": str(tmp_path / "a.csv"), "fields": ["x", "y"], "rate": 10, "size": 4}
    pipeline = {"source": {"series": series}, "steps": [{"infer": {"model": "swing"}}], "events": EVENTS}
    with running_pipelines(tmp_path, write_agent(tmp_path), pipelines_text(tmp_path, motor=pipeline)) as it:
        it.wait()
        status = it.runner.pipelines["motor"].status
    assert (status.captured, status.frames["answered"], status.frames["gap"]) == (10, 8, 2)
    assert status.captured == sum(status.frames.values())
    events = it.events("motor")
    found = [(one["event"], round(one["captured_unix_s"] - BEGAN, 1)) for one in events]
    assert found == [("up", 0.3), ("beat", 0.3), ("up", 0.7), ("up", 1.9), ("up", 2.3)]
    assert events[0]["answers"]["swing"]["label"] == "up"
    assert {one["route"] for one in events} == {"edge"}


def test_a_window_that_the_cloud_answers_later_amends_its_own_event(tmp_path: Path) -> None:
    """The cloud says of each window what it can be told by: the mean of it."""

    def means(request: InferRequest, _: grpc.ServicerContext) -> bytes:
        up = 0.5 + request.inputs["x"].mean(axis=(1, 2)) / 100
        response = InferResponse(request.model, {"p": np.stack([1 - up, up], 1).astype(np.float32)}, "1", request.id)
        return serialize_infer_response(response)

    cloud = ScriptedCloud()
    cloud.behaviour = status(grpc.StatusCode.UNAVAILABLE)
    config = json.loads(write_agent(tmp_path).read_text())
    config |= {"cloud": {"endpoint": cloud.address}, "policy": "policy.yaml"}
    config["models"]["swing"]["cloud"] = {"model": "large"}
    (tmp_path / "agent.yaml").write_text(json.dumps(config))
    hard = {"deadline": "5s", "hard": {"measure": "max_prob", "below": 1.0}, "spool": True}
    (tmp_path / "policy.yaml").write_text(json.dumps({"version": 1, "defaults": hard}))
    as_csv(tmp_path / "a.csv", [{"time": BEGAN + n / 10, "x": n // 4, "y": n // 4} for n in range(40)])
    series = {"file": str(tmp_path / "a.csv"), "fields": ["x", "y"], "rate": 10, "size": 4}
    seen = {"name": "seen", "on": "frame"}
    pipeline = {"source": {"series": series}, "steps": [{"infer": {"model": "swing"}}], "events": [seen]}
    text = pipelines_text(tmp_path, motor=pipeline)
    try:
        with running_pipelines(tmp_path, tmp_path / "agent.yaml", text) as it:
            it.wait()
            until(lambda: len(it.events("motor")) == 10, "each window is told")
            assert {one["answers"]["swing"]["route"] for one in it.events("motor")} == {"edge"}
            cloud.behaviour = means
            until(lambda: len(it.events("motor")) == 20, "and amended")
    finally:
        cloud.stop()
    events = it.events("motor")
    first = {one["id"]: number for number, one in enumerate(events[:10])}
    assert {one["amends"] for one in events[10:]} == set(first)
    for one in events[10:]:
        said, window = one["answers"]["swing"], first[one["amends"]]
        assert (said["route"], said["label"], "case" in said) == ("cloud", "up" if window else said["label"], False)
        assert max(said["score"], 1 - said["score"]) == pytest.approx(0.5 + window / 100, abs=1e-3)
        assert one["captured_unix_s"] == events[window]["captured_unix_s"]


def test_a_window_that_is_late_is_counted(tmp_path: Path) -> None:
    as_csv(tmp_path / "a.csv", rows(8))
    series = {"file": str(tmp_path / "a.csv"), "fields": ["x", "y"], "rate": 10, "size": 4}
    source = {"series": series, "deadline": "0.001ms"}
    text = pipelines_text(tmp_path, motor={"source": source, "steps": [{"infer": {"model": "swing"}}]})
    with running_pipelines(tmp_path, write_agent(tmp_path), text) as it:
        it.wait()
        status = it.runner.pipelines["motor"].status
    assert (status.captured, status.frames["late"]) == (2, 2)


@needs_mosquitto
def test_a_deadline_counts_from_the_time_stamp_of_the_last_sample(tmp_path: Path, there: Broker) -> None:
    topic = {"broker": f"mqtt://127.0.0.1:{there.port}", "topic": TOPIC}
    series = {"mqtt": topic, "fields": ["x", "y"], "rate": 10, "size": 4}
    pipeline = {
        "source": {"series": series, "deadline": "10s"}, "steps": [{"infer": {"model": "swing"}}], "events": EVENTS[:1],
    }  # fmt: skip
    with (
        running_pipelines(tmp_path, write_agent(tmp_path), pipelines_text(tmp_path, motor=pipeline)) as it,
        closing(Sensor(there.port)) as sensor,
    ):
        until(lambda: "Sending SUBACK to upwell" in there.log_text(), "subscribed")

        def outcomes(outcome: str) -> int:
            return it.runner.pipelines["motor"].status.frames[outcome]

        sensor.say([{**one, "y": 1} for one in rows(4, began=time.time() - 60)])
        until(lambda: outcomes("late") == 1, "what is a minute old is late")
        sensor.say([{**one, "y": 1} for one in rows(8, began=time.time() - 1)])
        until(lambda: outcomes("answered") >= 1, "what is new is not")
        until(lambda: len(it.events("motor")) >= 1, "and is told")
        assert 0 <= it.events("motor")[0]["latency_ms"] < 10_000


def test_a_model_that_does_not_take_the_windows_is_refused_at_the_start(tmp_path: Path) -> None:
    series = {"file": "a.csv", "fields": ["x", "y"], "rate": 10, "size": 5}
    text = pipelines_text(tmp_path, motor={"source": {"series": series}, "steps": [{"infer": {"model": "swing"}}]})
    with (
        pytest.raises(ConfigError, match=r"model 'swing' takes \[4, 2\], but a window is \[5, 2\]"),
        running_pipelines(tmp_path, write_agent(tmp_path), text),
    ):
        pass


def test_a_file_says_all_that_a_series_is_opened_with(tmp_path: Path) -> None:
    said = (
        "mqtt: {broker: 'mqtts://b:1', topic: s/7, ca: ca.pem, user: u, password_file: p}, time: t, unit: us, "
        "fields: [x, a.b], rate: 50, size: 100, step: 25, gap: 80ms, gaps: nan"
    )
    text = f"pipelines: {{p: {{source: {{series: {{{said}}}, keep: all, silent: 7s}}}}}}"
    section = parse_pipelines(text, tmp_path / "pipelines.yaml", {})[0].pipelines["p"].source
    tls, patience = TlsFiles(ca=tmp_path / "ca.pem"), Patience(silent_s=7)
    topic = MqttTopicSettings("mqtts://b:1", "s/7", tls, "u", tmp_path / "p", "all", patience=patience)
    shape = SeriesShape(("x", "a.b"), WindowShape(50.0, 100, 25, 0.08), "t", 1e-6, True)
    assert source_settings(section) == SeriesTopicSettings(topic, shape)
    assert section.place == "mqtts://b:1 s/7"


def test_recorded_samples_are_run_through_a_pipeline(tmp_path: Path) -> None:
    as_csv(tmp_path / "a.csv", [{**one, "y": 1} for one in rows(8)])
    series = {"mqtt": {"broker": "mqtt://127.0.0.1", "topic": TOPIC}, "fields": ["x", "y"], "rate": 10, "size": 4}
    pipeline = {"source": {"series": series}, "steps": [{"infer": {"model": "swing"}}], "events": EVENTS[:1]}
    (tmp_path / "pipelines.yaml").write_text(pipelines_text(tmp_path, motor=pipeline))
    words = [str(tmp_path / "pipelines.yaml"), "-c", str(write_agent(tmp_path)), "--out", str(tmp_path / "out")]

    def tried(recording: str) -> Result:
        return CliRunner().invoke(APP, [*words, "--json", "--video", str(tmp_path / recording)])

    document = json.loads(tried("a.csv").stdout)
    assert (document["captured"], document["events"]) == (2, {"up": 2})
    assert document["files"] == [str(tmp_path / "out" / "events.jsonl")]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["events.jsonl"]
    refused = tried("agent.yaml").exception
    assert isinstance(refused, ConfigError)
    assert "the source of 'motor' is a series; expected a file that ends in .csv" in str(refused)
