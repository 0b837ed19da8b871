"""Drift on a running agent: dark pictures are seen, named, told, and tighten the policy while they last."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from tests.faults.clouds import ScriptedCloud
from tests.faults.oracles import EDGE_BUNDLE, picture
from tests.faults.scene import until, write_agent
from tests.fleet_service import service
from tests.integration.agent.kept import EASY, STATE, Kept, spooling_agent
from upwell.edge.bundle.open_bundle import NO_TRUST
from upwell.edge.fleet.device_facts import within_bytes
from upwell.edge.models.model_config import ModelSection
from upwell.edge.models.row_measures import picture_of
from upwell.edge.server.agent_assembly import embedded_agent
from upwell.edge.server.agent_core import AgentCore
from upwell.edge.updates.model_versions.model_start import loaded
from upwell.shared.errors import ConfigError
from upwell.shared.platform.background_thread import BackgroundThread
from upwell.shared.signature.picture_quality import picture_quality
from upwell.shared.signature.signature import LogicalInput, Signature
from upwell.shared.tensors import TensorSpec
from upwell.tools import drift_cli
from upwell.tools.cli import build_app
from upwell.tools.demo.digit_data import heldout

POLLED_S = 60.0


def run(*arguments: str, code: int = 0) -> Any:
    done = CliRunner().invoke(build_app(list(arguments)), list(arguments))
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's model with a reference of the first 250 held-out digits."""
    folder = tmp_path_factory.mktemp("reference") / "digits"
    shutil.copytree(EDGE_BUNDLE, folder)
    data = folder.parent / "data"
    data.mkdir()
    for index in range(250):
        (data / f"{index:03}.png").write_bytes(picture(index))
    made = run("model", "reference", str(folder), "--data", str(data), "--json")
    assert made["rows"] == 250
    assert set(made["quantities"]) == {"hardness", "classes", "brightness", "sharpness", "embedding", "frozen"}
    return folder


def darkened(index: int, share: float) -> bytes:
    image = Image.open(io.BytesIO(picture(index))).convert("L").point(lambda value: int(value * share))
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def models_of(folder: Path) -> Mapping[str, Any]:
    return {"digits": {"edge": {"bundle": str(folder)}, "cloud": {"model": "digits-large"}}}


def ask(it: Kept, image: bytes, **tags: str) -> Any:
    return it.agent.infer("digits", {"image": image}, tags=tags)


def report(agent: AgentCore) -> Any:
    assert agent.drift is not None
    return agent.drift.reports().get("digits")


def test_dark_pictures_are_seen_named_and_tighten_the_policy_until_they_end(tmp_path: Path, bundle: Path) -> None:
    on_drift = {"hard": {"measure": "max_prob", "below": 1.0}}
    count = len(heldout().images)
    with (
        ScriptedCloud() as cloud,
        spooling_agent(tmp_path, {**EASY, "on_drift": on_drift}, cloud, models=models_of(bundle)) as it,
    ):
        for index in range(250, 350):
            assert ask(it, picture(index % count)).reason == "easy"
        until(lambda: report(it.agent) is not None and report(it.agent).quantities["brightness"].rows == 100)
        assert report(it.agent).findings == []
        for index in range(200):
            ask(it, darkened(index, 0.3))
        until(lambda: report(it.agent).findings == ["camera"])
        assert "dark" in report(it.agent).text
        answer = ask(it, darkened(1, 0.3))
        assert (answer.reason, answer.route) == ("drifted", "cloud")
        health = it.agent.health_document()
        assert health["drift"]["digits"]["quantities"]["brightness"]["moved"]
        assert health["status"] == "ok"
        page = it.agent.metrics.registry.get_sample_value("upwell_drift", {"model": "digits", "quantity": "brightness"})
        assert page == 1.0
        for index in range(500):
            ask(it, picture(index % count))
        until(lambda: not report(it.agent).quantities["brightness"].moved)
    state = tmp_path / "state"
    document = run("drift", str(tmp_path / "agent.yaml"), "--json", code=int(bool(report(it.agent).findings)))
    assert document["models"]["digits"]["quantities"]["brightness"]["rows"] > 700
    assert (state / "drift.json").stat().st_size < 500_000


def test_what_egress_denies_is_not_counted_and_a_restart_goes_on(tmp_path: Path, bundle: Path) -> None:
    rules = [{"name": "private", "match": {"tags": {"privacy": "device"}}, "egress": "deny"}]
    for rows in (30, 60):
        with spooling_agent(tmp_path, EASY, None, rules=rules, models=models_of(bundle)) as it:
            for index in range(30):
                ask(it, picture(index))
                ask(it, picture(index), privacy="device")
            until(lambda rows=rows, it=it: report(it.agent) and report(it.agent).quantities["classes"].rows >= rows)  # type: ignore[misc]
            assert report(it.agent).quantities["classes"].rows == rows
    (tmp_path / "state" / "drift.json").write_text("{")
    with spooling_agent(tmp_path, EASY, None, models=models_of(bundle)) as it:  # a broken file costs the counts alone
        ask(it, picture(0))
        until(lambda: report(it.agent) and report(it.agent).quantities["classes"].rows == 1)


def test_a_log_is_held_against_a_bundle(tmp_path: Path, bundle: Path) -> None:
    with spooling_agent(tmp_path, {**EASY, "record": {}}, None, models=models_of(bundle)) as it:
        for _ in range(150):
            ask(it, picture(0))  # the same digit each time: the world changed
    log = tmp_path / "state" / "requests.jsonl"
    document = run("drift", str(log), "--bundle", str(bundle), "--json", code=1)
    assert document["models"]["digits"]["findings"] == ["world"]
    assert document["false_alarms"] == 0.05
    assert document["models"]["digits"]["quantities"]["classes"]["moved"]
    others = {"state": "nothing was counted for", "state/requests.jsonl": "it has no request of"}
    for where, said in others.items():
        asked = ["drift", str(tmp_path / where), "--bundle", str(bundle), "--model", "other"]
        done = CliRunner().invoke(build_app(asked), asked)
        assert f"{said} 'other'; expected one of digits" in str(done.exception)


def test_novel_rows_are_told_by_the_reference_from_the_first_one_on(tmp_path: Path, bundle: Path) -> None:
    with spooling_agent(
        tmp_path, {**EASY, "collect": {"hard": 0, "random": 1.0}}, None, models=models_of(bundle)
    ) as it:
        for index in range(250, 280):
            ask(it, picture(index))
        assert it.agent.collector is not None
        until(lambda: it.agent.collector.held()[0] == 30)  # type: ignore[union-attr]
    cases = run("cases", "list", str(tmp_path / "agent.yaml"), "--json")["cases"]
    assert 0.6 < np.mean([one["novelty"] for one in cases]) < 1.5


def test_a_packed_bundle_and_a_broken_reference_are_refused(tmp_path: Path, bundle: Path) -> None:
    folder = tmp_path / "digits"
    shutil.copytree(bundle, folder)
    (folder / "reference.json").write_text('{"version": 1, "quantities": {"odd": {}}}')
    done = CliRunner().invoke(build_app(["model"]), ["model", "pack", str(folder), "--version", "1"])
    assert isinstance(done.exception, ConfigError)
    assert "reference.json: not a reference written by `upwell model reference`" in str(done.exception)
    (folder / "manifest.json").write_text("{}")
    done = CliRunner().invoke(build_app(["model"]), ["model", "reference", str(folder), "--data", str(tmp_path)])
    assert isinstance(done.exception, ConfigError)
    assert "it is already packed" in str(done.exception)


def test_too_many_rows_are_refused_before_any_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift_cli, "MOST_ROWS", 2)
    shutil.copytree(EDGE_BUNDLE, tmp_path / "digits")
    (tmp_path / "data").mkdir()
    for index in range(3):
        (tmp_path / "data" / f"{index}.png").write_bytes(b"no picture")
    arguments = ["model", "reference", str(tmp_path / "digits"), "--data", str(tmp_path / "data")]
    done = CliRunner().invoke(build_app(["model"]), arguments)
    assert "--data: 3 rows, more than 2; use fewer" in str(done.exception)
    monkeypatch.undo()
    done = CliRunner().invoke(build_app(["model"]), arguments)
    assert "--data: the model does not accept 0.png: " in str(done.exception)


@pytest.mark.slow
def test_a_fleet_service_is_told_of_drift_by_a_message_of_its_own(tmp_path: Path, bundle: Path) -> None:
    with service(tmp_path, poll="1s") as fleet:
        (tmp_path / "enrol").write_text(fleet.enrolment_token())
        section = {"endpoint": fleet.url, "ca": str(fleet.ca), "enrol_token_file": "enrol"}
        path = write_agent(tmp_path, {"defaults": EASY}, None, models_of(bundle), {**STATE, "name": "dock"})
        path.write_text(json.dumps({**json.loads(path.read_text()), "fleet": section}))

        def told() -> Any:
            status, found = fleet.call("GET", "/devices/dock")
            return found.get("drift") if status == HTTPStatus.OK else None

        def shown() -> str:
            where = ["--at", fleet.url, "--token-file", str(tmp_path / "operator"), "--ca", str(fleet.ca)]
            done = CliRunner().invoke(build_app(["fleet"]), ["fleet", "show", "dock", *where])
            assert done.exit_code == 0, done.output
            return done.output

        (tmp_path / "operator").write_text(fleet.operator)
        with embedded_agent(path) as agent:
            for index in range(250, 350):
                agent.infer("digits", {"image": picture(index)})
            until(lambda: (told() or {}).get("digits", {}).get("findings") == [], POLLED_S)
            assert "digits: no drift" in shown()
            for index in range(200):
                agent.infer("digits", {"image": darkened(index, 0.3)})
            until(lambda: told()["digits"]["findings"] == ["camera"], POLLED_S)
        assert told()["digits"]["quantities"]["brightness"]["moved"]
        (line,) = [one for one in shown().splitlines() if "out of focus" in one]
        assert line.startswith("  digits: the camera is dirty")
        assert "brightness" in line
        assert any(one["text"] == "digits: camera" for one in fleet.get("/events")["events"])
        history = fleet.get("/devices/dock/history")["history"]
        assert history
        assert not any("drift" in one["counts"] for one in history)


def test_pixels_are_counted_as_encoded_pictures_are(tmp_path: Path, bundle: Path) -> None:
    with ScriptedCloud() as cloud, spooling_agent(tmp_path, EASY, cloud, models=models_of(bundle)) as it:
        for index in range(250, 270):
            pixels = np.asarray(Image.open(io.BytesIO(picture(index))).convert("L"))
            it.agent.infer("digits", {"image": pixels[None, :, :, None]})
        until(lambda: report(it.agent) is not None and report(it.agent).quantities["brightness"].rows == 20)


def test_what_is_told_of_drift_holds_what_fits_and_what_drifted_first() -> None:
    documents = {str(n): {"findings": [], "text": "x" * 100} for n in range(50)}
    documents["late"] = {"findings": ["world"], "text": "x" * 100}
    found = within_bytes(documents, 1500)
    assert next(iter(found)) == "late"
    assert 5 < len(found) < 15


@pytest.mark.parametrize(
    ("written", "instead", "side"),
    [
        ("image: {kind: image}", "image: {kind: image, uplink: {encode: jpeg, quality: 5}}", {}),
        ("labels: labels.txt}", "labels: labels.txt}, logits: {kind: tensor}", {"exits": ["logits"]}),
    ],
    ids=["sent as a JPEG", "behind an exit"],
)
def test_the_pictures_that_came_are_measured_whatever_goes_up(
    tmp_path: Path, bundle: Path, written: str, instead: str, side: dict[str, Any]
) -> None:
    copy = shutil.copytree(bundle, tmp_path / "bundle")
    (copy / "model.yaml").write_text((copy / "model.yaml").read_text().replace(written, instead))
    models = {"digits": {"edge": {"bundle": str(copy), "runtime": "onnx", **side}, "cloud": {"model": "digits-large"}}}
    with ScriptedCloud() as cloud, spooling_agent(tmp_path, EASY, cloud, models=models) as it:
        edge = it.agent.models["digits"].edge
        assert edge is not None
        assert edge.source.reference is not None
        expected = edge.source.reference.quantities["sharpness"]
        bins = [0] * len(expected.counts)
        for index in range(250, 270):
            bins[expected.bin_of(picture_quality(picture(index))[1]) or 0] += 1
            pixels = np.asarray(Image.open(io.BytesIO(picture(index))).convert("L"))
            it.agent.infer("digits", {"image": pixels[None, :, :, None]})
        until(lambda: report(it.agent) is not None and report(it.agent).quantities["sharpness"].rows == 20)
        assert report(it.agent).quantities["sharpness"].counts == bins


def test_a_version_without_a_reference_ends_what_was_found_of_the_one_before(tmp_path: Path, bundle: Path) -> None:
    on_drift = {"hard": {"measure": "max_prob", "below": 1.0}}
    plain = ModelSection.model_validate({"edge": {"bundle": str(EDGE_BUNDLE), "runtime": "onnx"}})
    with (
        ScriptedCloud() as cloud,
        spooling_agent(tmp_path, {**EASY, "on_drift": on_drift}, cloud, models=models_of(bundle)) as it,
        loaded("digits", plain, NO_TRUST) as served,
    ):
        for index in range(200):
            ask(it, darkened(index, 0.3))
        until(lambda: report(it.agent) is not None and report(it.agent).findings == ["camera"])
        until(lambda: ask(it, darkened(1, 0.3)).reason == "drifted")
        assert served.edge is not None
        it.agent.replace_edge("digits", served.edge)
        until(lambda: ask(it, darkened(1, 0.3)).reason == "easy")
        assert report(it.agent) is None
        assert "drift" not in it.agent.health_document()
    assert json.loads((tmp_path / "state" / "drift.json").read_text())["models"] == {}


def test_pixels_are_measured_in_rgb_and_of_two_pictures_the_first() -> None:
    taken = TensorSpec("", "BYTES", (-1,))
    left, right = (LogicalInput(name, "image", taken, is_bgr=name == "right") for name in ("left", "right"))
    pixels = np.random.default_rng(0).integers(0, 256, (2, 4, 4, 3), np.uint8)
    inputs = {"right": pixels, "left": pixels + np.uint8(1)}
    for signature, expected in (
        (Signature((left, right), (), has_rows=True), inputs["left"][1]),
        (Signature((right, left), (), has_rows=True), pixels[1, :, :, ::-1]),
    ):
        np.testing.assert_array_equal(picture_of(signature, inputs, 1), expected)


def test_what_came_while_no_thread_was_left_is_measured_later(
    tmp_path: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: BackgroundThread) -> None:
        raise RuntimeError("can't start new thread")

    with ScriptedCloud() as cloud, spooling_agent(tmp_path, EASY, cloud, models=models_of(bundle)) as it:
        with monkeypatch.context() as patch:
            patch.setattr(BackgroundThread, "start", fail)
            assert ask(it, picture(250)).reason == "easy"
        ask(it, picture(251))
        until(lambda: report(it.agent) is not None and report(it.agent).quantities["sharpness"].rows == 2)
