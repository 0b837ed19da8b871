"""Cases of a running agent: which rows are kept and as what, with both sides' answers, and what is never kept."""

from __future__ import annotations

import io
import json
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from tests.faults.clouds import ScriptedCloud
from tests.faults.oracles import EDGE_BUNDLE, cloud_scores, edge_scores, margins, picture, pictures
from tests.faults.scene import until
from tests.integration.agent.kept import EASY, MARK, SPOOLED, STATE, Kept, spooling_agent
from tests.integration.cases.made_cases import Made, encoded, keep
from upwell.edge.case_collection import case_collector, case_database
from upwell.edge.case_collection.case_database import FILE_NAME, CaseStore
from upwell.edge.case_collection.case_file_encryption import pack
from upwell.edge.case_collection.collected_case import CollectedCase
from upwell.edge.models.edge_model import EdgeModel, ModelSource, ServedModel
from upwell.edge.observe.flight_recorder import FRAMES_NAME
from upwell.edge.observe.request_trace import MOST_TAGS
from upwell.edge.runtimes.fake import FakeRuntime
from upwell.edge.server.agent_core import AgentCore, AgentParts
from upwell.edge.server.state_dir import StateDir
from upwell.edge.spool.open_database import migrate, open_database, opened
from upwell.edge.spool.spool import FILE_NAME as SPOOL_NAME
from upwell.pipelines.run.late_answers import AMENDMENTS_NAME, _open
from upwell.pipelines.sinks.base import REQUESTS_TAG
from upwell.pipelines.sinks.outbox_store import OUTBOX_NAME, SCHEMA
from upwell.shared.config.yaml import parse_yaml
from upwell.shared.opamp import CASE_SUFFIX
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.policy.settings import CollectSettings, HardSettings
from upwell.shared.signature.model_yaml import ModelDescription
from upwell.shared.signature.processor import Processor
from upwell.shared.tensors import TensorSpec
from upwell.tools.cases import case_source
from upwell.tools.cases.case_source import CaseDatabase, CaseFolder, CaseLost, CaseSource
from upwell.tools.cli import build_app

HARD_HALF = {"deadline": "5s", "hard": {"measure": "margin", "below": 0.9}}


@pytest.fixture
def cloud() -> Iterator[ScriptedCloud]:
    with ScriptedCloud() as cloud:
        yield cloud


def database(it: Kept) -> CaseDatabase:
    """The cases of the agent, read beside it."""
    return CaseDatabase(it.folder / "state" / FILE_NAME)


def collected(it: Kept) -> list[CollectedCase]:
    """All of them."""
    source = database(it)
    with source.reading() as read:
        return [read(facts.id) for facts in source.facts()]


def kept(it: Kept, count: int) -> list[CollectedCase]:
    """The cases, once there are so many."""
    until(lambda: len([*database(it).facts()]) >= count)
    return collected(it)


def run(*arguments: str) -> Any:
    """What a command of `upwell` says with --json."""
    done = CliRunner().invoke(build_app(list(arguments)), list(arguments))
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_hard_picture_is_kept_as_it_came_with_what_both_sides_said(tmp_path: Path, cloud: ScriptedCloud) -> None:
    found = margins(edge_scores(pictures(range(60))))
    with spooling_agent(tmp_path, {**HARD_HALF, "collect": {}}, cloud) as it:
        for index in range(60):
            it.ask(index, camera='d\u00f6ck "1"')
        hard = [index for index in range(60) if found[index] < 0.9]
        assert 0 < len(hard) < 60
        cases = kept(it, len(hard))
    assert [case.pictures() for case in cases] == [{"image": picture(index)} for index in hard]
    for case, index in zip(cases, hard, strict=True):
        facts = case.facts
        assert (facts.why, facts.is_hard, facts.route, facts.inclusion) == (("hard",), True, "cloud", 0.0)
        assert facts.tags == {"camera": 'd\u00f6ck "1"'}
        assert facts.hardness == pytest.approx(found[index], abs=1e-5)
        assert facts.hard is not None
        assert (facts.hard.measure, facts.hard.threshold) == ("margin", 0.9)
        assert facts.edge_digest.startswith("sha256:")
        np.testing.assert_allclose(case.edge_outputs()["scores"], edge_scores(pictures([index])), atol=1e-5)
        np.testing.assert_allclose(case.cloud_outputs()["scores"], cloud_scores(pictures([index])), atol=1e-5)


def test_without_a_cloud_hard_rows_of_a_request_are_kept_each_by_itself(tmp_path: Path) -> None:
    found = margins(edge_scores(pictures(range(20))))
    with spooling_agent(tmp_path, {**HARD_HALF, "collect": {}}, None) as it:
        it.ask(*range(20))
        cases = kept(it, int((found < 0.9).sum()))
    assert [case.facts.row for case in cases] == np.flatnonzero(found < 0.9).tolist()
    assert [case.pictures()["image"] for case in cases] == [picture(case.facts.row) for case in cases]
    assert all(case.cloud == b"" for case in cases)


@pytest.mark.parametrize(
    ("written", "instead", "side"),
    [
        ("image: {kind: image}", "image: {kind: image, uplink: {encode: jpeg, quality: 5}}", {}),
        ("labels: labels.txt}", "labels: labels.txt}, logits: {kind: tensor}", {"exits": ["logits"]}),
    ],
    ids=["sent as a JPEG", "behind an exit"],
)
def test_a_case_holds_the_picture_that_came_whatever_goes_up(
    tmp_path: Path, cloud: ScriptedCloud, written: str, instead: str, side: dict[str, Any]
) -> None:
    bundle = shutil.copytree(EDGE_BUNDLE, tmp_path / "bundle")
    description = (bundle / "model.yaml").read_text()
    assert written in description
    (bundle / "model.yaml").write_text(description.replace(written, instead))
    models = {
        "digits": {"edge": {"bundle": str(bundle), "runtime": "onnx", **side}, "cloud": {"model": "digits-large"}}
    }
    pixels = np.asarray(Image.open(io.BytesIO(picture(0))).convert("RGB"))
    policy = {"deadline": "5s", "hard": {"measure": "max_prob", "below": 1.0}, "collect": {}}
    with spooling_agent(tmp_path, policy, cloud, models=models) as it:
        it.agent.infer("digits", {"image": pixels[None]})
        (case,) = kept(it, 1)
    stored = Image.open(io.BytesIO(case.pictures()["image"]))
    assert stored.format == "PNG"
    np.testing.assert_array_equal(np.asarray(stored.convert("RGB")), pixels)


def test_what_missed_the_cloud_gets_its_answer_later(tmp_path: Path, cloud: ScriptedCloud) -> None:
    with spooling_agent(tmp_path, {**SPOOLED, "collect": {}}, cloud) as it:
        it.proxy.refuse()
        it.ask(3)
        it.ask(4, 5)
        assert [case.cloud for case in kept(it, 3)] == [b"", b"", b""]
        it.proxy.restore()
        until(lambda: all(case.cloud for case in collected(it)), 20.0)
        for case, index in zip(collected(it), (3, 4, 5), strict=True):
            np.testing.assert_allclose(case.cloud_outputs()["scores"], cloud_scores(pictures([index])), atol=1e-5)


def test_audits_and_random_rows_carry_their_chance_and_no_cap_holds_for_them(
    tmp_path: Path, cloud: ScriptedCloud
) -> None:
    collect = {"hard": 0, "random": 0.5, "per_day": 0, "one_per_track": True}
    with spooling_agent(tmp_path, {**EASY, "audit": 0.5, "collect": collect}, cloud) as it:
        for index in range(100):
            it.ask(index, track="7")
        kept(it, 55)
        until(lambda: all(case.cloud for case in collected(it) if "audited" in case.facts.why), 20.0)
        cases = collected(it)
    assert 55 <= len(cases) <= 92  # three of four: the odds of less or more are below 1e-4
    assert {case.facts.inclusion for case in cases} == {0.75}
    assert {why for case in cases for why in case.facts.why} == {"audited", "random"}


def test_egress_denied_or_collect_false_leaves_no_byte_on_disk(tmp_path: Path, cloud: ScriptedCloud) -> None:
    rules = [
        {"name": "private", "match": {"tags": {"privacy": "device"}}, "egress": "deny"},
        {"name": "spared", "match": {"tags": {"kind": "face"}}, "collect": False},
        {"name": "all", "match": {}, "set": {"collect": {"random": 1.0}}},
    ]
    with spooling_agent(tmp_path, {**HARD_HALF, "collect": {}}, cloud, rules=rules) as it:
        it.ask(1, mark=MARK, privacy="device")
        it.ask(2, mark=MARK, kind="face")
        it.ask(3)
        assert len(kept(it, 1)) == 1
        assert not it.holds(MARK)
    assert not it.holds(MARK)


def test_a_source_has_its_share_of_a_day_and_a_track_one_case(tmp_path: Path) -> None:
    always = {"deadline": "5s", "hard": {"measure": "max_prob", "below": 1.0}}
    collect = {"per_day": 3, "source": "camera"}
    with spooling_agent(tmp_path, {**always, "collect": collect}, None) as it:
        for index in range(5):
            it.ask(index, camera="dock")
        it.ask(5, 6, camera="gate", track="1,2")
        it.ask(7, 8, camera="gate", track="1,3")
        cases = kept(it, 6)
    by_camera = [(case.facts.tags["camera"], case.facts.tags.get("track")) for case in cases]
    assert by_camera == [("dock", None)] * 3 + [("gate", "1"), ("gate", "2"), ("gate", "3")]
    with spooling_agent(tmp_path, {**always, "collect": collect}, None) as it:  # a restart begins no new day
        it.ask(9, camera="dock")
        it.ask(10, camera="yard")
        assert len(kept(it, 7)) == 7


def test_purge_leaves_no_byte_of_a_marked_picture_beside_a_running_agent(tmp_path: Path, cloud: ScriptedCloud) -> None:
    defaults = {**SPOOLED, "collect": {"random": 1.0}, "record": {"keep": "1MiB"}}
    with spooling_agent(tmp_path, defaults, cloud, STATE) as it:
        it.proxy.refuse()
        it.ask(1, mark=MARK, person="7")
        it.ask(2, camera="dock")
        kept(it, 2)
        assert it.holds(MARK)
        said = run("cases", "purge", str(tmp_path / "agent.yaml"), "--tag", "person=7", "--json")
        assert (said["cases"], said["spooled"]) == (1, 1)
        assert not it.holds(MARK)
        assert [case.facts.tags for case in collected(it)] == [{"camera": "dock"}]
        it.proxy.restore()
        it.ask(3, mark=MARK, person="7")
        until(lambda: any(line.get("tags") == {"camera": "dock"} for line in it.lines()), 20.0)
        kept(it, 2)
        assert it.holds(MARK)
        run("cases", "purge", str(tmp_path / "agent.yaml"), "--tag", "person=7", "--json")
        assert not it.holds(MARK)
        assert '"person": "7"' not in (tmp_path / "results.jsonl").read_text()
    assert not it.holds(MARK)


def test_purge_also_erases_what_has_tags_that_nobody_can_read(tmp_path: Path, cloud: ScriptedCloud) -> None:
    with spooling_agent(tmp_path, {**SPOOLED, "collect": {"random": 1.0}}, cloud, STATE) as it:
        it.proxy.refuse()
        it.ask(1, person="7")
        it.ask(2, camera="dock")
        it.ask(3, camera="yard")
        kept(it, 3)
    with closing(sqlite3.connect(tmp_path / "state" / SPOOL_NAME)) as spool, spool:
        spool.execute("UPDATE items SET tags = CAST(x'ff7b7d' AS TEXT) WHERE tags LIKE '%dock%'")
    said = run("cases", "purge", str(tmp_path / "agent.yaml"), "--tag", "person=7", "--json")
    assert (said["cases"], said["spooled"]) == (1, 2)


def _frame(number: int, request_id: str, text: str, events: tuple[str, ...] = (), amends: str = "") -> str:
    """A line of the recorder of frames."""
    steps = [{"step": "infer digits", "requests": [request_id]}] if request_id else []
    about = {"amends": amends} if amends else {}
    said = [{"event": "enter", "id": id} for id in events]
    return json.dumps({"id": f"dock/{number}", "frame": number, "steps": steps, "text": text, "events": said, **about})


@pytest.mark.parametrize("version", [2, len(SCHEMA)])
def test_purge_reaches_flights_outbox_and_amendments_and_spares_what_is_not_meant(
    tmp_path: Path, cloud: ScriptedCloud, version: int
) -> None:
    who, other = "person-eleven" * 10, "person-twelve" * 10
    more: dict[str, Any] = {f"t{number}": "yes" for number in range(MOST_TAGS)}  # than the flight recorder keeps
    with spooling_agent(tmp_path, {**SPOOLED, "collect": {"random": 1.0}}, cloud, STATE) as it:
        it.proxy.refuse()
        answer = it.ask(1, **more, person=who)
        it.ask(2, person=other)
        kept(it, 2)
    state = tmp_path / "state"
    with closing(open_database(state / OUTBOX_NAME, SCHEMA)) as outbox, outbox:
        for person in (who, other):
            tags = json.dumps({REQUESTS_TAG: json.dumps([("faces", {}), ("digits", {"person": person})])})
            body = f"event of {person}".encode()
            message = ("dock", 0.0, 1, person, "enter", 1, "digits", tags, body, b"")
            outbox.execute("INSERT INTO messages VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", message)
            aside = ("s", "", 1, person, "dock", "enter", 1, body, b"", 0, "digits", tags)
            outbox.execute("INSERT INTO poisoned VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", aside)
        migrate(outbox, SCHEMA, target=version)
    with closing(_open(state / AMENDMENTS_NAME)) as waiting, waiting:
        waiting.execute("INSERT INTO waiting VALUES (?, 0, ?)", (answer.spool_id, who))
        waiting.execute("INSERT INTO waiting VALUES ('another', 0, ?)", (other,))
    frames = [_frame(1, answer.id, who, ("e1",)), _frame(2, "another", other, ("e2",)), _frame(3, "", who, (), "e1")]
    (state / FRAMES_NAME).mkdir()
    (state / FRAMES_NAME / "00000001.jsonl").write_text("".join(f"{line}\n" for line in frames))
    for name in (OUTBOX_NAME, AMENDMENTS_NAME, FILE_NAME, SPOOL_NAME):
        (state / f"{name}.damaged").write_bytes(who.encode())
        (state / f"{name}.damaged-wal").write_bytes(who.encode())
    assert it.holds(who.encode())
    said = run("cases", "purge", str(tmp_path / "agent.yaml"), "--tag", f"person={who}", "--json")
    counts = ("cases", "spooled", "events", "amendments", "flights", "frames", "damaged databases")
    assert [said[name] for name in counts] == [1, 1, 2, 1, 1, 2, 8]
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or who[:40].encode() not in path.read_bytes(), path
    for name in (OUTBOX_NAME, AMENDMENTS_NAME, FILE_NAME, "flights", FRAMES_NAME):
        files = [state / name] if (state / name).is_file() else list((state / name).iterdir())
        assert any(other[:40].encode() in path.read_bytes() for path in files), name
    with closing(sqlite3.connect(state / OUTBOX_NAME)) as outbox:
        assert outbox.execute("SELECT key FROM poisoned").fetchall() == [(other,)], "what another set aside stays"


def test_lists_sheets_and_counts(tmp_path: Path, cloud: ScriptedCloud) -> None:
    with spooling_agent(tmp_path, {**HARD_HALF, "collect": {"random": 1.0}}, cloud) as it:
        it.ask(*range(8), camera="<b>'\u2603/")
        kept(it, 8)
    config = str(tmp_path / "agent.yaml")
    listed = run("cases", "list", config, "--json")["cases"]
    assert len(listed) == 8
    assert run("cases", "list", config, "--tag", "camera=other", "--json")["cases"] == []
    counted = run("cases", "stats", config, "--json")
    assert (counted["cases"], counted["evaluated"], counted["models"]) == (8, 8, {"digits": 8})
    shown = CliRunner().invoke(build_app(["cases", "stats"]), ["cases", "stats", config])
    assert "8 cases in" in shown.output
    for name in ("sheet.html", "sheet.png"):
        out = tmp_path / name
        done = CliRunner().invoke(build_app(["cases", "show"]), ["cases", "show", config, "--out", str(out)])
        assert done.exit_code == 0, done.output
    page = (tmp_path / "sheet.html").read_text()
    assert page.count("<figure") == page.count("data:image/png") == 8
    assert "&lt;b&gt;&#x27;\u2603/" in page
    assert (tmp_path / "sheet.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("kind", ["class", "near", "track"])
def test_rows_of_a_class_near_the_threshold_or_first_of_a_track_are_kept_as_such(tmp_path: Path, kind: str) -> None:
    scores = edge_scores(pictures(range(60)))
    collects: dict[str, Any] = {"class": {"classes": {"3": 1.0}}, "near": {"near": 0.05}, "track": {"track": 1.0}}
    wanted = {
        "class": np.flatnonzero(scores.argmax(axis=1) == 3).tolist(),
        "near": np.flatnonzero(np.abs(margins(scores) - 0.9) <= 0.05).tolist(),
        "track": list(range(0, 60, 3)),
    }[kind]
    assert 0 < len(wanted) < 60
    with spooling_agent(tmp_path, {**HARD_HALF, "collect": {"hard": 0, **collects[kind]}}, None) as it:
        for index in range(60):
            tags: dict[str, Any] = {"track": str(index // 3)} if kind == "track" else {}
            it.ask(index, **tags)
        cases = kept(it, len(wanted))
    assert [case.pictures() for case in cases] == [{"image": picture(index)} for index in wanted]
    assert {case.facts.why for case in cases} == {(kind,)}


DETECTOR = """
version: 1
signature:
  inputs: {raw: {kind: tensor, dtype: FP32, shape: [-1, 6, 8]}}
  outputs: {detections: {kind: detections}}
post: [{boxes: {format: cxcywh, normalized: true, min_score: 0.5}}]
"""


def test_a_row_of_a_detector_is_as_hard_as_it_was_when_decided(tmp_path: Path) -> None:
    raw = TensorSpec("raw", "FP32", (-1, 6, 8))
    runtime = FakeRuntime(lambda inputs: inputs, [raw], [raw])
    processor = Processor(parse_yaml(DETECTOR, ModelDescription), [raw], [raw], "onnx")
    edge = EdgeModel(runtime, processor, ModelSource("sha256:of-the-model"))
    policy = parse_yaml("defaults: {hard: {measure: margin, below: 0.9}, collect: {}}", Policy)
    scenes = np.zeros((2, 6, 8), np.float32)
    scenes[:, :4, 0] = 0.5, 0.5, 0.2, 0.2
    scenes[:, 4, 0] = 0.45, 0.95  # the first shows no object, but nearly
    with AgentCore([ServedModel("boxes", edge)], None, policy, AgentParts(state_dir=StateDir(tmp_path))) as agent:
        agent.infer("boxes", {"raw": scenes})
        made = edge.run_now({"raw": scenes})
        decided, _ = edge.scorer.score(made.outputs, HardSettings("margin"), 2, made.candidates)
    (facts,) = CaseDatabase(tmp_path / FILE_NAME).facts()
    assert (facts.row, facts.why) == (0, ("hard",))
    assert facts.hardness == decided < 0.9
    assert facts.measures["margin"] < 0.9


@pytest.mark.parametrize("is_folder", [False, True])
def test_any_number_of_cases_is_read_over_one_connection_or_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_folder: bool
) -> None:
    ids = keep(tmp_path, [Made(encoded((4, 4), seed=number), {}, {}) for number in range(5)])
    source: CaseSource = CaseDatabase(tmp_path / FILE_NAME)
    if is_folder:
        with source.reading() as read:
            for id in ids:
                (tmp_path / f"{id}{CASE_SUFFIX}").write_bytes(pack(read(id), None))
        source = CaseFolder(tmp_path)
    calls: list[object] = []

    def noted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: object) -> Any:
            calls.append(given)
            return real(*given)

        return call

    monkeypatch.setattr(case_source, "opened", noted(opened))
    monkeypatch.setattr(CaseFolder, "_files", noted(CaseFolder._files))
    with source.reading() as read:
        assert [read(id).pictures()["image"] for id in ids] == [encoded((4, 4), seed=number) for number in range(5)]
        with pytest.raises(CaseLost, match="no longer exists"):
            read("0" * 32)
    assert len(calls) == 1


def test_bytes_are_capped_by_dropping_the_oldest_mined_cases_and_age_drops_all(tmp_path: Path) -> None:
    store = CaseStore.open(tmp_path / FILE_NAME)
    settings = CollectSettings(per_day=1 << 30, keep_bytes=60_000, max_age_s=100.0)
    made = [Made(encoded((4, 4)), {}, {}, inclusion=0.0 if number else 1.0).case() for number in range(30)]
    for number, case in enumerate(made):
        with store.transaction():
            store.add(case, settings, float(number))
    store.close()
    source = CaseDatabase(tmp_path / FILE_NAME)
    left = [facts.id for facts in source.facts()]
    assert sum(case.size_bytes for case in made if case.facts.id in left) <= 60_000
    assert left == [made[0].facts.id, *(case.facts.id for case in made[31 - len(left) :])]
    store = CaseStore.open(tmp_path / FILE_NAME)
    with store.transaction():
        store.expire(127.5)
    store.close()
    assert [facts.id for facts in source.facts()] == [case.facts.id for case in made[28:]]


def test_the_tags_of_a_case_take_room_too() -> None:
    plain, tagged = (Made(encoded((4, 4)), {}, {}, tags=tags).case() for tags in ({}, {"note": "\u00e9" * 1000}))
    assert tagged.size_bytes - plain.size_bytes > 2 * 6 * 1000


def test_a_case_too_large_to_be_kept_takes_nothing_of_its_day(tmp_path: Path) -> None:
    store = CaseStore.open(tmp_path / FILE_NAME)
    settings = CollectSettings(per_day=1, keep_bytes=60_000)
    large, *small = [Made(encoded((side, side)), {}, {}).case() for side in (400, 4, 4)]
    with store.transaction():
        found = [store.add(case, settings, 0.0) for case in (large, *small)]
    store.close()
    assert found == ["refused_large", "kept", "refused_day"]


def test_pictures_that_wait_for_a_disk_that_hangs_take_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(case_collector, "_MOST_WAITING_BYTES", 5000)
    may_go_on = threading.Event()
    always = {"deadline": "5s", "hard": {"measure": "max_prob", "below": 1.0}, "collect": {}}
    with spooling_agent(tmp_path, always, None) as it:
        it.ask(0)
        kept(it, 1)
        collector = it.agent.collector
        assert collector is not None
        assert collector._keeper is not None
        try:
            collector._keeper.submit(lambda _: may_go_on.wait(60))
            for index in range(20):
                it.ask(index, mark=bytes(1000))
            assert collector.counts()["refused_busy"] > 10
        finally:
            may_go_on.set()


def test_sources_that_callers_invent_share_the_limit_of_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(case_database, "_MOST_SOURCES", 2)
    store = CaseStore.open(tmp_path / FILE_NAME)
    settings = CollectSettings(per_day=2)

    def added(source: str) -> str:
        case = Made(encoded((4, 4)), {}, {}).case()
        with store.transaction():
            return store.add(replace(case, facts=case.facts.model_copy(update={"source": source})), settings, 0.0)

    assert [added(source) for source in "aab"] == ["kept"] * 3
    assert [added(source * 100_000) for source in "cde"] == ["kept", "kept", "refused_day"]
    assert [added(source) for source in "ab"] == ["refused_day", "kept"]
    store.close()


def test_a_day_keeps_its_count_where_the_wall_clock_is_far_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [Made(encoded((4, 4)), {}, {}).case() for _ in range(2)]
    booted_s = made[0].facts.created_unix_s
    monkeypatch.setattr(case_database, "time", SimpleNamespace(time=lambda: booted_s))
    store = CaseStore.open(tmp_path / FILE_NAME)
    found = []
    for case in made:
        with store.transaction():
            found.append(store.add(case, CollectSettings(per_day=1), booted_s + 1e8))
            store.expire(booted_s + 1e8)
    store.close()
    assert found == ["kept", "refused_day"]
