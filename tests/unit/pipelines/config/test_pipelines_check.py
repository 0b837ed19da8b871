"""The type check of pipelines: what it lets through, what it knows without models, and what it doubts."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.unit.pipelines.config.models import MODELS
from upwell.pipelines.config.model_signatures import SignatureFacts
from upwell.pipelines.config.pipelines_check import check_pipelines, parse_pipelines
from upwell.shared.errors import ConfigError

DETECT = "infer: {model: people}"
BOXED = f"{{{DETECT}}}"
SAMPLES = "{mqtt: {broker: 'mqtt://127.0.0.1', topic: s}, time: t, unit: ms, fields: [a.x], rate: 50, size: 9, step: 3}"


def whole(steps: str = "", events: str = "", source: str = "video: a.mp4", sinks: str = "") -> str:
    parts = {"steps": steps, "events": events, "sinks": sinks}
    rest = "".join(f", {key}: [{value}]" for key, value in parts.items() if value)
    return f"pipelines: {{p: {{source: {{{source}}}{rest}}}}}"


def problems(text: str, models: dict[str, SignatureFacts] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_pipelines(text, None, MODELS if models is None else models)
    return [f"{one.key.removeprefix('pipelines.p.')}: {one.message}" for one in caught.value.problems]


def warnings(text: str) -> list[str]:
    return [f"{one.key.removeprefix('pipelines.p.')}: {one.message}" for one in parse_pipelines(text, None, MODELS)[1]]


@pytest.mark.parametrize(
    "text",
    [
        whole(),
        whole("change: {}"),
        whole("{infer: {model: digits}}, {infer: {model: people}}, {track: {}}"),
        whole(f"{BOXED}, {{infer: {{model: helmet, on: objects}}}}, {{blur: {{labels: [face, car]}}}}"),
        whole(f"{BOXED}, {{keep: {{min_score: 20%}}}}, {{blur: {{labels: [face]}}}}"),
        whole("{infer: {model: far}}, {track: {}}, {blur: {labels: [anything]}}"),
        whole(f"{BOXED}, {{zones: {{a: [[0, 0], [1, 0], [1, 1]]}}}}, {{zones: {{b: [[0, 0], [1, 0], [1, 1]]}}}}"),
        whole(f"{BOXED}, {{track: {{}}}}", "{name: a, on: appear}, {name: b, on: leave}, {name: c, on: every 1h}"),
        whole(source="folder: in, keep: latest, watch: false, done: move"),
        whole(source="camera: /dev/v4l/by-id/usb-cam_0-video-index0, decoder: v4l2m2m"),
        whole(source="video: 'rtsp://cam/1', decoder: 'gst-launch-1.0 rtspsrc location={address} ! decodebin'"),
        whole(source="mqtt: {broker: 'mqtt://127.0.0.1:1884', topic: cams/7, user: u}, fps: 5, silent: 1m"),
        whole(source="mqtt: {broker: 'mqtt://far.local', topic: cams/7, insecure: true}, keep: all"),
        whole("{infer: {model: swing}}", source="series: {file: a.csv, fields: [x, y, z], rate: 100, size: 128}"),
        whole("{infer: {model: far}}", source=f"series: {SAMPLES}, keep: all, silent: 1m, deadline: 1s"),
        whole(source="plugin: {name: lidar, options: {port: 7, deep: [{er: 1}]}}"),
        whole(sinks="{mqtt: {broker: 'mqtt://127.0.0.1:1884', topic: t, user: u}}"),
        whole(sinks="{mqtt: {broker: 'mqtt://far.local', topic: t, insecure: true}}"),
        whole(sinks="{mqtt: {broker: 'mqtts://[::1]', topic: '{pipeline}/{event}', cert: c.pem, key: k.pem}}"),
        whole(sinks="{kafka: {brokers: ['k1:9092', 'k2:9092'], topic: t, tls: true, ca: ca.pem}}"),
        whole(sinks="{webhook: {url: 'http://localhost:8123/api?x=1', secret_file: s}}"),
    ],
)
def test_what_can_work_is_right(text: str) -> None:
    parse_pipelines(text, None, MODELS)


def test_what_lacks_the_same_is_told_once() -> None:
    events = "{name: a, on: appear}, {name: b, on: cross gate}"
    steps = "{track: {}}, {zones: {gate: {line: [[0, 0], [1, 1]]}}}, {infer: {model: helmet, on: objects}}"
    assert problems(whole(steps, events)) == [
        "steps[0].track: track needs objects, but no earlier step finds any; "
        "expected an earlier `infer` with a detector"
    ]
    no_track = whole(f"{BOXED}, {{infer: {{model: helmet, on: objects, once: track}}}}, {{track: {{}}}}", events)
    assert problems(no_track) == [
        "steps[1].infer.once: `once: track` needs an earlier `track` step",
        "events[1].on: no step defines a line 'gate'; available: none",
    ]


def test_every_problem_of_every_pipeline_is_told_at_once() -> None:
    text = "pipelines:\n" + "".join(
        f"  {name}: {{source: {{folder: a}}, steps: [{{infer: {{model: m}}}}], events: [{{name: e, on: enter z}}]}}\n"
        for name in ("a", "b")
    )
    with pytest.raises(ConfigError) as caught:
        parse_pipelines(text, Path("x.yaml"), MODELS)
    assert [(one.line, one.key) for one in caught.value.problems] == [
        (2, "pipelines.a.steps[0].infer.model"),
        (2, "pipelines.a.events[0].on"),
        (3, "pipelines.b.steps[0].infer.model"),
        (3, "pipelines.b.events[0].on"),
    ]


def test_without_models_any_model_may_find_any_object() -> None:
    parse_pipelines(whole("{infer: {model: x}}, {track: {}}, {infer: {model: y, on: objects}}, {blur: {labels: [z]}}"))
    with pytest.raises(ConfigError, match="track needs objects, but no earlier step finds any"):
        parse_pipelines(whole("{track: {}}, {infer: {model: x}}"))


def test_a_cloud_model_before_blur_is_doubted_and_after_it_is_not() -> None:
    asked = "{infer: {model: far, on: objects}}"
    blur = "{blur: {labels: [face]}}"
    first = "steps[0].infer.model: whole frames sent to the cloud for 'people' are not blurred yet; step"
    assert warnings(whole(f"{BOXED}, {asked}, {blur}")) == [
        f"{first} 3 blurs",
        "steps[1].infer.model: crops sent to the cloud for 'far' are not blurred yet; step 3 blurs",
    ]
    assert warnings(whole(f"{BOXED}, {blur}, {asked}")) == [f"{first} 2 blurs"]
    assert warnings(whole(f"{BOXED}, {asked}")) == []


def test_events_that_nobody_hears_and_sinks_that_are_told_nothing_are_doubted() -> None:
    assert warnings(whole(events="{name: a, on: frame}")) == ["events: there are no sinks, so these events go nowhere"]
    assert warnings(whole(sinks="{jsonl: a.jsonl}")) == ["sinks: there are no events, so these sinks receive nothing"]


def test_blur_of_what_keep_has_dropped_is_refused() -> None:
    steps = f"{BOXED}, {{keep: {{labels: [person]}}}}, {{blur: {{labels: [face]}}}}"
    assert problems(whole(steps)) == ["steps[2].blur.labels[0]: `keep` in step 2 drops objects with the label 'face'"]


def test_blur_after_keep_is_doubted_where_keep_drops_more_than_labels() -> None:
    doubt = "steps[2].blur: what `keep` in step 2 drops by its score or `where` stays visible; blur before it"

    def is_doubted(keep: str) -> bool:
        return doubt in warnings(whole(f"{BOXED}, {{keep: {{{keep}}}}}, {{blur: {{labels: [face]}}}}"))

    assert is_doubted("min_score: 20%")
    assert is_doubted("labels: [face, person], min_score: 20%")
    assert not is_doubted("labels: [face, person]")
    before = warnings(whole(f"{BOXED}, {{blur: {{labels: [face]}}}}, {{keep: {{min_score: 20%}}}}"))
    assert not any("stays visible" in one for one in before)


def test_a_camera_belongs_to_one_pipeline() -> None:
    text = "pipelines: {a: {source: {camera: /dev/video0}}, b: {source: {camera: /dev/video0}}}"
    assert problems(text) == [
        "pipelines.b.source.camera: 'a' also reads /dev/video0, but only one pipeline can open a camera"
    ]


def test_events_are_not_written_into_the_samples_that_a_pipeline_reads() -> None:
    series = "series: {file: motor.jsonl, fields: [x], rate: 1, size: 1}"
    assert problems(whole("", "{name: a, on: frame}", series, "{jsonl: motor.jsonl}")) == [
        f"sinks[0].jsonl: the source of 'p' reads {Path('motor.jsonl').absolute()}; expected a separate path"
    ]


@pytest.mark.parametrize(
    ("sink", "instead"),
    [
        ("webhook: {url: 'https://h/T0/hunter2', secret_file: a}", "secret_file: b"),
        ("mqtt: {broker: 'mqtts://h', topic: t, user: a}", "user: b"),
        ("kafka: {brokers: ['localhost:9092'], topic: t, user: a, password_file: a}", "user: b"),
    ],
)
def test_a_sink_is_not_named_twice_unless_two_pipelines_share_it(sink: str, instead: str) -> None:
    """The outbox would refuse them at the start."""

    def text(first: str, second: str) -> str:
        rest = "events: [{name: a, on: frame}], sinks:"
        one, other = (f"{{source: {{folder: in}}, {rest} [{sinks}]}}" for sinks in (first, second))
        return f"pipelines: {{p: {one}, q: {other}}}"

    kind, changed = sink.partition(":")[0], re.sub(r"(secret_file|user): a", instead, sink)
    assert problems(text(f"{{{sink}}}, {{{sink}}}", "{jsonl: a}")) == [
        f"sinks[1].{kind}: sink 1 sends there, too; expected one of them"
    ]
    assert problems(text(f"{{{sink}}}", f"{{{changed}}}")) == [
        f"pipelines.q.sinks[0].{kind}: sink 1 of 'p' sends there with other settings; expected the same"
    ]
    parse_pipelines(text(f"{{{sink}}}", f"{{{sink}}}"))


@pytest.mark.parametrize(
    ("topics", "event", "told"),
    [
        (["site/dock/{event}"], "status", ["site/dock/status"]),
        (["site/dock/{event}"], "stopped", []),
        (["site/dock/{event}/state"], "status", []),
        (["site/dock"], "status", []),
        (["{pipeline}/{event}"], "status", []),  # its own status is in upwell/status
        (["site/{event}", "site/status"], "seen", ["site/status"]),
    ],
)
def test_an_event_is_not_published_where_a_sink_says_its_status(topics: list[str], event: str, told: list[str]) -> None:
    sinks = ", ".join(f"{{mqtt: {{broker: 'mqtt://localhost', topic: '{topic}'}}}}" for topic in topics)
    text = whole(events=f"{{name: {event}, on: frame}}", sinks=sinks)
    expected = [
        f"sinks[{len(topics) - 1}].mqtt.topic: the event {event!r} would go to {topic}, where a sink says whether it "
        "is online; expected another name or topic"
        for topic in told
    ]
    assert (problems(text) if told else warnings(text)) == expected


def test_a_model_called_as_a_field_of_an_object_is_refused() -> None:
    steps = "{infer: {model: score}}"
    assert problems(whole(steps), {"score": SignatureFacts("logits")}) == [
        "steps[0].infer.model: in `where`, score is not a model; rename the model in agent.yaml"
    ]


def test_sources_have_the_defaults_of_their_kind() -> None:
    def source(text: str) -> tuple[str, str, str]:
        config, _ = parse_pipelines(whole(source=text), Path("/srv/p.yaml"))
        found = config.pipelines["p"].source
        return found.kind, found.keeps, found.place

    assert source("video: a.mp4") == ("video", "all", "/srv/a.mp4")
    assert source("video: 'rtsp://dock:secret@cam.local:8554/main?token=secret'") == (
        "video", "latest", "rtsp://cam.local:8554/main",
    )  # fmt: skip
    assert source("video: 'rtsp://dock:12/34@cam.local/main?x=y'") == ("video", "latest", "rtsp://cam.local/main")
    assert source("camera: /dev/video0") == ("camera", "latest", "/dev/video0")
    assert source("folder: in") == ("folder", "all", "/srv/in")
    assert source("folder: in, keep: latest") == ("folder", "latest", "/srv/in")


def test_events_are_read_and_written_back() -> None:
    pytest.importorskip("cel_expr_python")
    config, _ = parse_pipelines((Path(__file__).parent / "right_steps.yaml").read_text())
    triggers = [event.on for event in config.pipelines["dock"].events]
    assert [(one.kind, one.zone, one.after_s) for one in triggers] == [
        ("enter", "door", 0.0), ("cross", "gate", 0.0), ("dwell", "door", 10.0), ("every", "", 60.0),
    ]  # fmt: skip
    assert [str(one) for one in triggers] == ["enter door", "cross gate", "dwell door 10s", "every 60s"]


def test_a_file_that_was_loaded_without_models_can_be_checked_with_them(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    config, _ = parse_pipelines(whole(BOXED), path)
    review = check_pipelines(config, {})
    assert [str(one) for one in config.problems(review.problems)] == [
        f"{path}:1:65: pipelines.p.steps[0].infer.model: agent.yaml has no model 'people'; available: none"
    ]


def test_without_the_extra_it_is_said_what_a_condition_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "upwell.pipelines.events.where_condition", None)
    assert problems(whole(events="{name: a, on: frame, where: 'true'}")) == [
        "events[0].where: `where` needs the package cel-expr-python: pip install 'upwell[cel]' (Python 3.11 or later)"
    ]


def test_times_are_of_objects_that_are_followed() -> None:
    pytest.importorskip("cel_expr_python")
    text = whole(BOXED, "{name: a, on: frame, where: object.age_s > 1}")
    assert problems(text) == ["events[0].where: object.age_s needs an earlier `track` step"]


def test_a_field_that_no_answer_has_is_refused_where_the_model_is_known() -> None:
    pytest.importorskip("cel_expr_python")
    fields = {"label": (), "speed": ("value", "values"), "boxes": ("objects",)}
    models = {"ship": SignatureFacts("probabilities", fields=fields), "far": MODELS["far"]}

    def where(condition: str) -> str:
        return whole("{infer: {model: ship}}, {infer: {model: far}}", f"{{name: a, on: frame, where: '{condition}'}}")

    told = "events[0].where: frame.ship"
    assert problems(where('frame.ship.lable == "a"'), models) == [
        f"{told}.lable: answers of model 'ship' have no field 'lable'; did you mean 'label'?"
    ]
    assert problems(where('frame.answers["ship"].speed.valu > 1'), models) == [
        f"{told}.speed.valu: output 'speed' has no field 'valu'; did you mean 'value'?"
    ]
    assert problems(where("size(frame.ship.boxes.objects) > 1"), models) == [  # they are objects of the frame
        f"{told}.boxes: answers of model 'ship' have no field 'boxes'; expected one of label, speed"
    ]
    parse_pipelines(where('frame.far.lable == "a" || frame.ship.speed.value > 1'), None, models)


def test_a_field_that_is_nearly_one_of_every_answer_is_doubted_where_the_model_is_not_known() -> None:
    pytest.importorskip("cel_expr_python")

    def told(condition: str) -> list[str]:
        where = f"{{name: a, on: frame, where: '{condition}'}}"
        return warnings(whole("{infer: {model: far}}", where, sinks="{jsonl: a.jsonl}"))

    doubt = "the answers of model 'far' are not known here; did you mean"
    assert told('frame.far.lable == "7"') == [f"events[0].where: frame.far.lable: {doubt} 'label'?"]
    for right in ('frame.far.label == "7"', "frame.far.scores.score > 1", "frame.far.speed > 1", "frame.far.value > 1"):
        assert told(right) == []


def test_of_a_model_with_two_outputs_of_boxes_the_second_is_read_from_its_answer() -> None:
    pytest.importorskip("cel_expr_python")
    models = {"cars": SignatureFacts("detections", fields={"cars": ("objects",), "plates": ("objects",)})}
    steps = "{infer: {model: cars}}"
    text = whole(steps, "{name: a, on: frame, where: 'size(frame.cars.plates.objects) > 1'}")
    parse_pipelines(text, None, models)
    assert problems(text.replace("plates.objects", "cars.objects"), models) == [
        "events[0].where: frame.cars.cars: answers of model 'cars' have no field 'cars'; expected one of plates"
    ]


def test_the_labels_of_a_detector_are_not_those_of_its_classes() -> None:
    pytest.importorskip("cel_expr_python")
    models = {"boxes": MODELS["people"], "plates": SignatureFacts("detections", ("plate",))}
    steps = "{infer: {model: boxes}}, {infer: {model: plates, on: objects}}"
    parse_pipelines(whole(steps, "{name: a, on: frame, where: 'object.plates.label == \"dirty\"'}"), None, models)


@pytest.mark.parametrize("read", ["frame.kind.label", 'frame.answers["kind"].label'])
def test_a_label_that_a_model_of_whole_frames_does_not_have_is_refused(read: str) -> None:
    models = {"kind": SignatureFacts("probabilities", ("cat", "dog")), "boxes": MODELS["people"]}
    steps = "{infer: {model: kind}}, {infer: {model: boxes}}"

    def where(condition: str) -> str:
        return whole(steps, f"{{name: a, on: frame, where: '{condition}'}}")

    said = problems(where(f'{read} in ["dog", "dgo"]'), models)
    assert said == ["events[0].where: model 'kind' has no label 'dgo'; did you mean 'dog'?"]
    parse_pipelines(where(f'{read} == "dog" || frame.boxes.label == "of another output"'), None, models)
