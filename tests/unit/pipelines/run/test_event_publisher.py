"""What goes into the outbox: in order, judged as it was asked about, and amended under one key."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from tests.pipelines_run import write_agent
from upwell.edge.server.agent_assembly import embedded_agent
from upwell.edge.spool.spooled_request import SpoolResult
from upwell.pipelines.config.pipelines_check import parse_pipelines
from upwell.pipelines.events.event_rules import FiredEvent
from upwell.pipelines.frame import FoundObject, Frame, Scene
from upwell.pipelines.frame_outcome import AnsweredFrame
from upwell.pipelines.run.bound_steps import bind_steps
from upwell.pipelines.run.event_publisher import PublishedAs, Publisher, may_leave
from upwell.pipelines.run.infer_step import AnswerReader, Step
from upwell.pipelines.run.late_answers import Amendments, WaitingEvent
from upwell.pipelines.sinks.base import Message
from upwell.pipelines.sinks.outbox import Outbox
from upwell.pipelines.sinks.outbox_database import OutboxLimits
from upwell.pipelines.steps.geometry import Zones
from upwell.shared.oip.codec.converters import serialize_infer_response
from upwell.shared.oip.dataplane import InferResponse
from upwell.shared.signature.signature import LogicalOutput, Signature
from upwell.shared.tensors import TensorSpec

PICTURE = np.zeros((4, 4, 3), np.uint8)
SCENE = Scene(Frame(1, 1.0, 2.0, PICTURE, PICTURE[:, :, 0]), PICTURE)
SCORES = AnswerReader(
    Signature(
        (), (LogicalOutput("scores", "probabilities", TensorSpec("scores", "FP32", (-1, 2)), ("no", "yes")),), True
    )
)


class Kept:
    """A sink that keeps what it is given, and is of another machine."""

    name = "kept"
    leaves_device = True

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def deliver(self, messages: Sequence[Message]) -> None:
        self.messages += messages

    def close(self) -> None:
        pass


@contextmanager
def published(
    folder: Path,
    tags: Mapping[str, Sequence[Mapping[str, str]]] = {},
    may_send: Any = lambda _: True,
    detectors: tuple[str, ...] = (),
    zones: Zones | None = None,
    keeps: Mapping[str, Sequence[Step]] = {},
) -> Iterator[tuple[Publisher, Kept, list[tuple[str, int, str]]]]:
    kept, amended = Kept(), []
    outbox = Outbox(folder / "outbox.db", {"dock": [kept]}, OutboxLimits(), may_send)
    late = Amendments(None, lambda *_: True)
    publisher = Publisher(
        PublishedAs(
            "dock", "cards", tags, zones=zones, readers={"digits": SCORES, "faces": BOXES}, detectors=detectors,
            keeps=keeps,
        ),
        outbox, late,
        lambda model, track, case, _: amended.append((model, track, case)),
    )  # fmt: skip
    yield publisher, kept, amended
    outbox.flush(10.0)
    late.close()
    outbox.close()


def seen(*objects: FoundObject) -> AnsweredFrame:
    return AnsweredFrame(replace(SCENE, objects=objects), [FiredEvent("seen", objects)], 0.1)


def found(label: str = "card", zone: str = "", **answers: Mapping[str, Any]) -> FoundObject:
    return FoundObject(label, 0.9, (0, 0, 1, 1), 3, frozenset([zone] if zone else []), answers)


BOXES = AnswerReader(
    Signature((), (LogicalOutput("found", "detections", TensorSpec("found", "FP32", (-1, -1, 6)), ("face",)),), True)
)


def answer(spool_id: str = "case", yes: float = 0.9) -> SpoolResult:
    body = serialize_infer_response(InferResponse("digits", {"scores": np.array([[1 - yes, yes]], np.float32)}))
    return SpoolResult(1, spool_id, "request", "spool", "digits", "large", {}, "hard", 0.0, 1.0, "", body, b"")


WAITING = WaitingEvent(
    "dock", "first", "seen", 2.0, "digits", 0,
    {"label": "card", "score": 0.9, "box": [0, 0, 1, 1], "track": 3, "zones": [], "answers": {}},
)  # fmt: skip


def test_sequences_rise_in_the_outbox_while_late_answers_come(tmp_path: Path) -> None:
    with published(tmp_path) as (publisher, kept, _):

        def amend() -> None:
            for number in range(150):
                publisher.amend(WAITING, answer(str(number)))

        late = threading.Thread(target=amend)
        late.start()
        for _ in range(150):
            publisher.publish(seen(found()))
        late.join()
    sequences = [message.sequence for message in kept.messages]
    assert len(sequences) == 300
    assert sequences == sorted(set(sequences))


def test_an_amendment_has_the_direction_in_which_the_object_crossed(tmp_path: Path) -> None:
    crossed = found(digits={"label": "no", "case": "case/0"})
    with published(tmp_path) as (publisher, kept, _):
        publisher._late.take(answer())
        publisher.publish(AnsweredFrame(SCENE, [FiredEvent("passed", (crossed,), "out")], 0.1))
    told, amended = (json.loads(message.body) for message in kept.messages)
    assert amended["amends"] == told["id"]
    assert amended["direction"] == told["direction"] == "out"


def test_an_event_and_its_amendment_name_the_picture_and_the_time_in_the_recording(tmp_path: Path) -> None:
    read = found(digits={"label": "no", "case": "case/0"})
    origins: list[dict[str, Any]] = [{"path": tmp_path / "belt\udcff.png"}, {"media_s": 1 / 3}, {}]
    with published(tmp_path) as (publisher, kept, _):
        publisher._late.take(answer())
        for origin in origins:
            scene = replace(SCENE, frame=replace(SCENE.frame, **origin), objects=(read,))
            publisher.publish(AnsweredFrame(scene, [FiredEvent("seen", (read,))], 0.1))
    told = [json.loads(message.body) for message in kept.messages]
    assert [one["amends"] is None for one in told] == [True, False] * 3
    assert [one.get("file") for one in told] == ["belt\udcff.png"] * 2 + [None] * 4
    assert [one.get("media_s") for one in told] == [None] * 2 + [0.333333] * 2 + [None] * 2
    assert [{"file", "media_s"} & one.keys() for one in told[4:]] == [set(), set()]


def test_an_answer_that_is_handed_over_twice_amends_under_one_key(tmp_path: Path) -> None:
    with published(tmp_path) as (publisher, kept, amended):
        for spool_id in ("case", "case", "other"):
            publisher.amend(WAITING, answer(spool_id))
    first, second, other = (message.key for message in kept.messages)
    assert first == second != other
    digits = json.loads(kept.messages[0].body)["objects"][0]["digits"]
    assert (digits["label"], digits["route"], digits["id"]) == ("yes", "cloud", "request")
    assert amended == [("digits", 3, "case/0")] * 2 + [("digits", 3, "other/0")]


def deny(**match: Any) -> Mapping[str, Any]:
    return {"rules": [{"name": "no", "match": match, "egress": "deny"}]}


OPEN = {"zone.open": "yes"}


@pytest.mark.parametrize(
    ("policy", "objects", "leaves"),
    [
        (deny(unless_tags=OPEN), [found(zone="open")], True),
        # One that may leave takes no other along.
        (deny(unless_tags=OPEN), [found(zone="open"), found()], False),
        (deny(tags={"label": "a\nb"}), [found("a\nb")], False),
        # What a later model said is judged by the rules of that model, with the tags that it was asked with.
        (deny(model="digits"), [found(digits={"label": "7"})], False),
        (deny(model="digits"), [found()], True),
        (deny(tags={"who": "staff"}), [found(digits={"label": "7"})], False),
        (deny(tags={"who": "staff"}), [found()], True),
    ],
)
def test_an_event_leaves_only_where_all_that_it_tells_of_may(
    tmp_path: Path, policy: Mapping[str, Any], objects: Sequence[FoundObject], leaves: bool
) -> None:
    dock = {"pipeline": "dock"}
    tags = {"cards": [dock], "digits": [{**dock, "who": "staff"}, dock]}  # which is asked in two steps
    with (
        embedded_agent(write_agent(tmp_path, policy)) as agent,
        published(tmp_path, tags, may_leave(agent.router)) as (publisher, kept, _),
    ):
        publisher.publish(seen(*objects))
    assert bool(kept.messages) is leaves


@pytest.mark.parametrize("objects", [[found("face")], []])
def test_what_a_second_detector_found_or_did_not_find_is_judged_by_its_rules(
    tmp_path: Path, objects: Sequence[FoundObject]
) -> None:
    """Which detector an object is from is not known, so the rules of each hold for it."""
    with (
        embedded_agent(write_agent(tmp_path, deny(model="faces"))) as agent,
        published(tmp_path, {}, may_leave(agent.router), ("cards", "faces")) as (publisher, kept, _),
    ):
        about = {"cards": {"route": "edge"}}
        for answers in (about, {**about, "faces": {"route": "edge"}}):
            scene = replace(SCENE, answers=answers)
            publisher.publish(AnsweredFrame(scene, [FiredEvent("seen", tuple(objects))], 0.1))
        face = np.array([[[0, 0, 1, 1, 0.9, 0]]], np.float32)
        body = serialize_infer_response(InferResponse("faces", {"found": face}))
        publisher.amend(replace(WAITING, model="faces", object=None), replace(answer(), answer=body))
    assert len(kept.messages) == (0 if objects else 1)  # cards alone saw nothing


@pytest.mark.parametrize(("x", "leaves"), [(0.2, False), (0.8, True)])
def test_what_the_cloud_finds_later_in_a_zone_is_judged_by_the_rules_on_it(
    tmp_path: Path, x: float, leaves: bool
) -> None:
    zones = Zones({"private": [(0, 0), (0.5, 0), (0.5, 1), (0, 1)]}, {})
    with (
        embedded_agent(write_agent(tmp_path, deny(tags={"zone.private": "yes"}))) as agent,
        published(tmp_path, {}, may_leave(agent.router), ("cards", "faces"), zones) as (publisher, kept, _),
    ):
        face = np.array([[[x - 0.1, 0, x + 0.1, 0.5, 0.9, 0]]], np.float32)
        body = serialize_infer_response(InferResponse("faces", {"found": face}))
        publisher.amend(replace(WAITING, model="faces", object=None), replace(answer(), answer=body))
    assert bool(kept.messages) is leaves


@pytest.mark.parametrize("scores", [[[0.1, 0.9]], [0.1, 0.9], 0.9, [[0.1, 0.2, 0.7]] * 2, [[]] * 2])
def test_a_late_answer_that_is_not_of_the_model_amends_nothing_and_is_done_with(tmp_path: Path, scores: Any) -> None:
    """It would be handed over for ever, and all others wait behind it."""
    body = serialize_infer_response(InferResponse("digits", {"scores": np.array(scores, np.float32)}))
    with published(tmp_path) as (publisher, kept, amended):
        assert publisher.amend(replace(WAITING, row=1), replace(answer(), answer=body))
        assert publisher.amend(WAITING, answer())
    assert len(kept.messages) == len(amended) == 1


def test_what_the_cloud_finds_later_and_keep_drops_is_not_told(tmp_path: Path) -> None:
    steps = "{keep: {min_score: 99%}}, {infer: {model: cards}}, {keep: {labels: [face]}}, {keep: {min_score: 50%}}"
    text = f"pipelines: {{p: {{source: {{folder: in}}, steps: [{{infer: {{model: digits}}}}, {steps}]}}}}"
    section = parse_pipelines(text)[0].pipelines["p"]
    boxes = np.array([[[0, 0, 1, 1, 0.9, 0], [0, 0, 1, 1, 0.4, 0], [0, 0, 1, 1, 0.9, 1]]], np.float32)
    body = serialize_infer_response(InferResponse("faces", {"found": boxes}))
    with embedded_agent(write_agent(tmp_path)) as agent:
        keeps = {"faces": bind_steps("p", section, agent).keeps["cards"]}
    with published(tmp_path, detectors=("faces",), keeps=keeps) as (publisher, kept, _):
        publisher.amend(replace(WAITING, model="faces", object=None), replace(answer(), answer=body))
    (told,) = (json.loads(message.body) for message in kept.messages)
    assert [(one["label"], one["score"]) for one in told["objects"]] == [("face", 0.9)]


def test_events_that_the_disk_refuses_are_not_returned(tmp_path: Path) -> None:
    with published(tmp_path) as (publisher, kept, _):
        assert len(publisher.publish(seen(found()))) == 1
        assert publisher._outbox.flush(10.0)
        publisher._outbox.close()
        assert publisher.publish(seen(found())) == ()
    assert len(kept.messages) == 1


@pytest.fixture
def quick_disk() -> Iterator[Path]:
    """A folder in memory where there is one: here no power is cut."""
    with TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:  # noqa: S108
        yield Path(folder)


@pytest.mark.slow
def test_ten_thousand_late_answers_in_any_order_each_amend_their_own_event(quick_disk: Path) -> None:
    """Each answer has a score of its own, by which it can be told."""
    count, kept, amended = 10_000, Kept(), list[Any]()
    outbox = Outbox(quick_disk / "outbox.db", {"dock": [kept]}, OutboxLimits(), lambda _: True)
    late = Amendments(quick_disk / "late.db", lambda waiting, result: publisher.amend(waiting, result))
    publisher = Publisher(
        PublishedAs("dock", "cards", readers={"digits": SCORES}), outbox, late, lambda *about: amended.append(about)
    )
    order = np.random.default_rng(1).permutation(count)
    for first in range(0, count, 100):
        objects = [
            replace(found(digits={"label": "no", "case": f"case-{number}/0"}), track=number)
            for number in range(first, first + 100)
        ]
        fired = [FiredEvent("seen", (one,)) for one in objects]
        publisher.publish(AnsweredFrame(replace(SCENE, objects=tuple(objects)), fired, 0.1))
    for number in order:
        late.take(answer(f"case-{number}", 0.5 + number / count / 2))
    assert outbox.flush(60.0)
    late.close()
    outbox.close()
    bodies = [json.loads(message.body) for message in kept.messages]
    events = {body["id"]: body for body in bodies if body["amends"] is None}
    amendments = [body for body in bodies if body["amends"] is not None]
    assert len(events) == len({body["amends"] for body in amendments}) == len(amendments) == count
    for body in amendments:
        (now,), (then,) = body["objects"], events[body["amends"]]["objects"]
        assert now["track"] == then["track"]
        assert now["digits"]["score"] == pytest.approx(0.5 + now["track"] / count / 2, abs=1e-4)
    assert len(amended) == count
