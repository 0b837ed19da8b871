"""`upwell policy collect` against a real service: what it writes, what it leaves out, and how it goes on."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner, Result

from tests.faults.oracles import CLOUD_MODEL, CLOUD_MODELS, EDGE_BUNDLE, cloud_scores, edge_scores, picture, pictures
from tests.faults.programs import Program
from tests.unit.models_for_tests import linear
from upwell.shared.errors import ConfigError, UpwellError
from upwell.shared.oip.codec.converters import serialize_infer_request
from upwell.shared.oip.dataplane import Call, InferRequest, InferResponse
from upwell.shared.oip.fake_dataplane import FakeDataplane
from upwell.shared.oip.grpc.server.server import start_server
from upwell.shared.routing.calibration.pair_calibration import quality_costs
from upwell.shared.routing.hardness import hardness
from upwell.shared.routing.request_log_line import LogLine
from upwell.shared.tensors import Array
from upwell.tools.demo.digit_data import heldout, pages
from upwell.tools.policy.collect.cli import collect
from upwell.tools.policy.collect.collection_run import CloudSilent

pytest.importorskip("onnxruntime")
COUNT = 12


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    """The address of `upwell serve` with the demo's models."""
    with Program(["serve", "--models", str(CLOUD_MODELS), "--listen", "127.0.0.1:0"]) as running:
        yield running.address()


@contextmanager
def cloud_of(answer: Callable[[InferRequest], InferResponse]) -> Iterator[str]:
    """A service of a test's own."""

    class Scripted(FakeDataplane):
        def infer(self, request: InferRequest, call: Call) -> InferResponse:
            return answer(request)

    server = start_server(Scripted(), ["127.0.0.1:0"], max_workers=2)
    try:
        yield server.addresses[0]
    finally:
        server.stop(0)


class Folder:
    """A folder with an agent's files and the data, and the command run in this process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = path / "data"
        self.out = path / "log.jsonl"
        self.data.mkdir()

    def write(self, endpoint: str, policy: Mapping[str, Any] | None = None, **models: Any) -> Path:
        """Write `agent.yaml` and `policy.yaml`."""
        digits = {"edge": {"bundle": str(EDGE_BUNDLE), "runtime": "onnx"}, "cloud": {"model": CLOUD_MODEL}}
        config = {"cloud": {"endpoint": endpoint}, "policy": "policy.yaml", "models": {"digits": digits, **models}}
        (self.path / "agent.yaml").write_text(json.dumps(config))
        (self.path / "policy.yaml").write_text(json.dumps(policy or {}))
        return self.path / "agent.yaml"

    def pictures(self, count: int = COUNT) -> list[str]:
        """Put held-out digits there, some in folders of their own; returns their names in order."""
        names = [f"{index:03}.png" if index % 3 else f"more ü/{index:03}.png" for index in range(count)]
        (self.data / "more ü").mkdir()
        for index, name in enumerate(names):
            (self.data / name).write_bytes(picture(index))
        return sorted(names)

    def labels(self, rows: Sequence[tuple[str, object]]) -> Path:
        """Write labels.csv."""
        path = self.path / "labels.csv"
        path.write_text("file,label\n" + "".join(f"{name},{label}\n" for name, label in rows), encoding="utf-8")
        return path

    def run(self, *arguments: object, model: str = "digits") -> Result:
        """Run the command."""
        app = typer.Typer()
        app.command()(collect)
        fixed = [self.path / "agent.yaml", model, "--data", self.data, "--out", self.out]
        return CliRunner().invoke(app, [str(one) for one in (*fixed, *arguments)])

    def report(self, *arguments: object, model: str = "digits") -> dict[str, Any]:
        """The JSON report of a run that must succeed."""
        done = self.run("--json", *arguments, model=model)
        assert done.exit_code == 0, (done.output, done.exception)
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def error(self, *arguments: object, model: str = "digits", kind: type[UpwellError] = ConfigError) -> str:
        """The text of the error that a run must end with."""
        done = self.run(*arguments, model=model)
        assert type(done.exception) is kind, (done.output, done.exception)
        return str(done.exception)

    @property
    def lines(self) -> list[LogLine]:
        """The log, which must hold whole lines alone."""
        data = self.out.read_bytes()
        assert data.endswith(b"\n")
        return [LogLine.model_validate_json(line) for line in data.splitlines()]

    @property
    def items(self) -> list[str]:
        """The items of the log, in its order."""
        return [line.tags["item"] for line in self.lines]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def index_of(name: str) -> int:
    return int(Path(name).stem)


# --- What is written


def test_each_quality_of_a_picture_is_held_against_the_whole_picture(folder: Folder, service: str) -> None:
    bundle, cloud = str(EDGE_BUNDLE.parent / "pages"), {"model": "pages-large"}
    folder.write(service, pages={"edge": {"bundle": bundle, "runtime": "onnx"}, "cloud": cloud})
    for number, page in enumerate(pages(4, seed=5)):
        (folder.data / f"{number}.png").write_bytes(page.png)
    folder.report("--quality", 1, "--quality", 1, model="pages")
    for line in folder.lines:
        good, bad = line.qualities
        assert (good.quality, bad.quality) == (20, 1), "model.yaml's own, and the one asked for"
        assert bad.up_bytes < good.up_bytes < good.whole_bytes == bad.whole_bytes
        assert 3_000 < good.whole_bytes < 3_500, "the page as it came, whatever model.yaml says"
        assert good.agrees
    costs = quality_costs(folder.lines)
    assert [(one.quality, one.requests) for one in costs] == [(20, 4), (1, 4)]
    assert costs[1].bytes_share < costs[0].bytes_share < 0.7
    folder.pictures()
    assert "expected at most 20, the quality that model.yaml names" in folder.error("--quality", 40, model="pages")
    text = "--quality: model.yaml names no format that has a quality"
    assert text in folder.error("--quality", 20)


def test_every_item_has_a_line_with_what_both_sides_really_said(folder: Folder, service: str) -> None:
    folder.write(service)
    names = folder.pictures()
    labels = heldout().labels
    report = folder.report("--labels", folder.labels([(name, labels[index_of(name)]) for name in names]))
    assert folder.items == names
    for line in folder.lines:
        index = index_of(line.tags["item"])
        edge, cloud = edge_scores(pictures([index])), cloud_scores(pictures([index]))
        assert line.logits is not None
        assert np.exp(line.logits) == pytest.approx(edge[0], rel=1e-4, abs=1e-9)
        assert set(line.hardness) == {"max_prob", "margin", "entropy", "logit_norm"}
        assert line.hardness["margin"] == pytest.approx(hardness(edge, "margin", logits=False)[0], abs=1e-5)
        assert line.edge_correct is bool(edge.argmax() == labels[index])
        assert line.cloud_correct is bool(cloud.argmax() == labels[index])
        assert line.model == "digits"
        assert line.edge_runtime == "onnx"
        assert line.tags == {"item": line.tags["item"]}
        assert line.edge_digest.startswith("sha256:")
        assert line.cloud_digest.startswith("sha256:")
        assert line.edge_digest != line.cloud_digest
        assert line.edge_s is not None
        assert line.cloud_s is not None
        assert 0 < line.edge_s < 5
        assert 0 < line.cloud_s < 5
        request = InferRequest(CLOUD_MODEL, {"image": pictures([index])}, id="0" * 32)
        assert line.size_bytes == len(serialize_infer_request(request))
        assert line.reply_bytes > 40
    times = [line.t_s for line in folder.lines]
    assert all(before < after for before, after in itertools.pairwise(times))
    right = [line.edge_correct for line in folder.lines]
    assert report == {
        "out": str(folder.out), "truth": "labels", "collected": COUNT, "already_there": 0, "unlabelled": 0,
        "skipped": {}, "unanswered": {}, "kept_by_egress_rule": {}, "edge_accuracy": sum(map(bool, right)) / COUNT,
        "cloud_accuracy": sum(bool(line.cloud_correct) for line in folder.lines) / COUNT,
    }  # fmt: skip


def test_without_labels_the_cloud_is_right_and_it_says_so(folder: Folder, service: str) -> None:
    folder.write(service)
    folder.pictures(40)
    done = folder.run()
    assert done.exit_code == 0
    assert "no labels: the cloud's answers count as correct" in done.output
    for line in folder.lines:
        index = index_of(line.tags["item"])
        agree = edge_scores(pictures([index])).argmax() == cloud_scores(pictures([index])).argmax()
        assert (line.edge_correct, line.cloud_correct) == (bool(agree), True)
        assert line.tags["truth"] == "cloud"


def test_arrays_are_items_too(folder: Folder, service: str) -> None:
    folder.write(service)
    image = heldout().images[0]
    np.save(folder.data / "plain.npy", image)
    np.save(folder.data / "with rows.npy", image[None, :, :, None])
    np.savez(folder.data / "named.npz", image=image)
    (folder.data / "encoded.PNG").write_bytes(picture(0))
    assert folder.report()["collected"] == 4
    assert folder.items == ["encoded.PNG", "named.npz", "plain.npy", "with rows.npy"]
    for line in folder.lines:
        assert line.hardness["margin"] == pytest.approx(folder.lines[0].hardness["margin"], abs=1e-5)


def test_a_tensor_may_lack_its_row(folder: Folder) -> None:
    path = linear(folder.path, features=8, classes=3)
    path.with_suffix(".yaml").write_text(
        "signature:\n  inputs: {x: {kind: tensor, dtype: FP32, shape: [-1, 8]}}\n  outputs: {scores: {kind: logits}}\n"
    )
    answer = np.array([[0.0, 0.0, 9.0]], np.float32)

    def third(request: InferRequest) -> InferResponse:
        assert request.inputs["x"].shape == (1, 8)
        return InferResponse(request.model, {"scores": answer}, id=request.id)

    for name, rows in {"one": np.ones(8), "row": np.ones((1, 8)), "two": np.ones((2, 8)), "wide": np.ones(9)}.items():
        np.save(folder.data / f"{name}.npy", rows.astype(np.float32))
    with cloud_of(third) as address:
        folder.write(address, linear={"edge": {"file": path.name}, "cloud": {"model": "x"}})
        report = folder.report(
            "--labels", folder.labels([("one.npy", 2), ("row.npy", 1), ("two.npy", 0), ("wide.npy", 0)]), model="linear"
        )
    assert folder.items == ["one.npy", "row.npy"]
    assert [line.cloud_correct for line in folder.lines] == [True, False]
    assert [line.cloud_s for line in folder.lines] == [None, None]  # that server does not tell
    assert "energy" in folder.lines[0].hardness
    assert report["skipped"]["two.npy"] == "it has 2 rows; expected one item per file"
    assert "wide.npy" in report["skipped"]


# --- What is left out


def test_bad_items_are_told_counted_and_skipped(folder: Folder, service: str) -> None:
    folder.write(service)
    names = folder.pictures(4)
    (folder.data / "a.png").write_bytes(b"no picture")
    (folder.data / "b.png").write_bytes(b"")
    (folder.data / "c.npz").write_bytes(b"PK\3\4")
    (folder.data / "d.npy").write_bytes(b"\x93NUMPY\1\0")
    np.save(folder.data / "e.npy", np.zeros((3, 3, 3, 3, 3), np.float64))
    (folder.data / "notes.txt").write_text("no item")
    report = folder.report()
    assert set(report["skipped"]) == {"a.png", "b.png", "c.npz", "d.npy", "e.npy"}
    assert folder.items == names
    text = folder.run().output
    assert "5 skipped:" in text
    assert "a.png: row 0: expected a JPEG" in text


def test_a_name_that_is_no_text_is_skipped(folder: Folder, service: str) -> None:
    folder.write(service)
    names = folder.pictures(2)
    (Path(os.fsdecode(bytes(folder.data) + b"/\xff.png"))).write_bytes(picture(0))
    done = folder.run()
    assert done.exit_code == 0
    assert "\ufffd.png: its name is not UTF-8" in done.output
    assert folder.items == names


def test_only_bad_items_are_a_failure(folder: Folder, service: str) -> None:
    folder.write(service)
    (folder.data / "a.png").write_bytes(b"no picture")
    assert folder.run().exit_code == 1
    folder.pictures(1)
    assert folder.run().exit_code == 0
    assert folder.run().exit_code == 0  # what can be collected is there


def test_what_denies_egress_is_measured_and_not_sent(folder: Folder) -> None:
    asked: list[Array] = []

    def remember(request: InferRequest) -> InferResponse:
        asked.append(request.inputs["image"][0])
        return InferResponse(request.model, {"scores": cloud_scores(request.inputs["image"])}, id=request.id)

    names = folder.pictures(6)
    rules = [{"name": "mine", "match": {"tags": {"item": names[1:3]}}, "egress": "deny"}]
    with cloud_of(remember) as address:
        folder.write(address, {"rules": rules})
        report = folder.report()
    assert report["kept_by_egress_rule"] == dict.fromkeys(names[1:3], "mine")
    assert sorted(asked) == sorted(picture(index_of(name)) for name in (*names[:1], *names[3:]))
    kept = [line for line in folder.lines if line.tags["item"] in names[1:3]]
    assert [(line.edge_correct, line.cloud_correct, line.cloud_s, line.reply_bytes) for line in kept] == [
        (None, None, None, 0)
    ] * 2
    assert all(line.size_bytes > 100 and line.hardness and line.edge_s for line in kept)


def test_an_answer_that_cannot_be_used_is_null(folder: Folder) -> None:
    names = folder.pictures(4)
    wrong: Mapping[bytes, Array] = {
        picture(index_of(names[0])): np.full((1, 10), np.nan, np.float32),
        picture(index_of(names[1])): np.zeros((1, 3), np.float32),
        picture(index_of(names[2])): np.zeros((2, 10), np.float32),
    }

    def answer(request: InferRequest) -> InferResponse:
        image = request.inputs["image"]
        scores = wrong.get(image[0], cloud_scores(image))
        return InferResponse(request.model, {"scores": scores}, id=request.id)

    with cloud_of(answer) as address:
        folder.write(address)
        report = folder.report()
    assert set(report["unanswered"]) == set(names[:3])
    assert [(line.edge_correct is None, line.cloud_correct) for line in folder.lines] == [(True, None)] * 3 + [
        (False, True)
    ]
    assert report["cloud_accuracy"] == 1.0


def test_a_cloud_that_is_not_there_ends_it_and_leaves_the_items_for_later(folder: Folder, service: str) -> None:
    names = folder.pictures()
    rules = [{"name": "mine", "match": {"tags": {"item": [names[0], names[3]]}}, "egress": "deny"}]
    folder.write("127.0.0.1:1", {"rules": rules})
    assert "did not answer 5 items in a row" in folder.error(kind=CloudSilent)
    assert folder.items == names[:1]  # what lies behind the first silence waits with it
    folder.write(service, {"rules": rules})
    assert folder.report()["collected"] == COUNT - 1
    assert folder.items == names


def test_a_cloud_that_fell_silent_at_the_end_is_asked_again(folder: Folder, service: str) -> None:
    names = folder.pictures(3)
    rules = [{"name": "mine", "match": {"tags": {"item": [names[1]]}}, "egress": "deny"}]
    folder.write("127.0.0.1:1", {"rules": rules})
    done = folder.run("--json")
    report = json.loads(done.stdout)
    assert (done.exit_code, report["collected"], folder.items) == (0, 1, [names[1]])
    assert set(report["unanswered"]) == {names[0], names[2]}
    assert all(why.endswith("the same command asks again") for why in report["unanswered"].values())
    folder.write(service)
    assert (folder.report()["collected"], sorted(folder.items)) == (2, names)


def test_no_answer_at_all_is_a_failure(folder: Folder) -> None:
    folder.pictures(2)
    folder.write("127.0.0.1:1")
    done = folder.run()
    assert (done.exit_code, folder.out.read_bytes()) == (1, b"")
    assert "2 without an answer from the cloud" in done.output


def test_a_model_that_the_cloud_does_not_know_ends_it(folder: Folder, service: str) -> None:
    folder.pictures()
    edge = {"bundle": str(EDGE_BUNDLE), "runtime": "onnx"}
    folder.write(service, other={"edge": edge, "cloud": {"model": "no-such"}})
    assert "no-such" in folder.error(model="other", kind=CloudSilent)


# --- Going on


def test_a_run_goes_on_where_the_last_one_ended(folder: Folder, service: str) -> None:
    folder.write(service)
    names = folder.pictures()
    folder.report()
    whole = folder.out.read_bytes().splitlines(keepends=True)
    folder.out.write_bytes(b"".join(whole[:4]) + whole[4][:-20])  # as a power cut leaves it
    report = folder.report()
    assert (report["collected"], report["already_there"]) == (COUNT - 4, 4)
    assert folder.items == names
    assert folder.out.read_bytes().startswith(b"".join(whole[:4]))
    times = [line.t_s for line in folder.lines]
    assert all(before < after for before, after in itertools.pairwise(times))
    again = folder.report()
    assert (again["collected"], again["already_there"], again["edge_accuracy"]) == (0, COUNT, None)


@pytest.mark.slow
def test_an_interrupt_leaves_a_valid_log_and_the_command_goes_on(folder: Folder) -> None:
    """Ctrl-C comes while the cloud holds the seventh item: a process of its own, so that it is the real signal."""
    names = folder.pictures()
    script = (
        "import signal, typer; from upwell.tools.policy.collect.cli import collect\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # as the command line does\n"
        "app = typer.Typer(); app.command()(collect); app()"
    )
    running: list[subprocess.Popen[str]] = []
    count = 0

    def answer(request: InferRequest) -> InferResponse:
        nonlocal count
        count += 1
        if count == 7:
            running[0].send_signal(signal.SIGINT)
            running[0].wait(30)
        return InferResponse(request.model, {"scores": cloud_scores(request.inputs["image"])}, id=request.id)

    with cloud_of(answer) as address:
        config = folder.write(address)
        command = [
            sys.executable,
            "-c",
            script,
            str(config),
            "digits",
            "--data",
            str(folder.data),
            "--out",
            str(folder.out),
        ]
        running.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
        _, said = running[0].communicate(timeout=60)
        assert running[0].returncode == 130
        assert "interrupted: 6 of 12 items are in the log" in said
        assert folder.items == names[:6]
        assert folder.report()["already_there"] == 6
    assert folder.items == names


def test_a_log_of_something_else_is_refused_and_left_as_it_is(folder: Folder, service: str) -> None:
    edge = {"bundle": str(EDGE_BUNDLE), "runtime": "onnx"}
    lite = {"bundle": str(EDGE_BUNDLE), "runtime": "tflite"}
    cloud = {"model": CLOUD_MODEL}
    folder.write(service, twin={"edge": edge, "cloud": cloud}, lite={"edge": lite, "cloud": cloud})
    names = folder.pictures(3)
    folder.report("--labels", folder.labels([(name, 1) for name in names[:2]]))
    before = folder.out.read_bytes()
    assert "'digits' as the model" in folder.error(model="twin")
    assert "'labels' as the truth, but this is 'the cloud'" in folder.error()
    for text in (b"hello", b"hello\n", b'{"t_s": 1}\n', before + b"\n", b"\x89PNG\r\n\x1a\n\0\0"):
        folder.out.write_bytes(text)
        assert "this is not a line of a request log" in folder.error()
        assert folder.out.read_bytes() == text
    one = json.loads(before.splitlines()[0])
    folder.out.write_text(json.dumps({**one, "edge_digest": "sha256:0", "tags": {"truth": "cloud"}}) + "\n")
    assert "edge model's digest" in folder.error()


# --- Labels


def test_an_item_without_a_label_is_left_out_and_counted(folder: Folder, service: str) -> None:
    folder.write(service)
    names = folder.pictures()
    done = folder.run("--labels", folder.labels([(name, 0) for name in names[:5]]))
    assert "7 items left out, without a label" in done.output
    assert folder.items == names[:5]


# --- Wrong use


def test_wrong_use_is_told_before_anything_is_asked(folder: Folder) -> None:
    linear_path = linear(folder.path)
    sides = {"edge": {"file": linear_path.name}, "cloud": {"model": "x"}}
    folder.write("127.0.0.1:1", linear=sides, here={"edge": sides["edge"]}, up={"cloud": sides["cloud"]})
    assert "expected files that end in" in folder.error()
    folder.pictures(1)
    assert "no model 'dgits'; expected one of digits, linear, here, up" in folder.error(model="dgits")
    assert "it has no cloud side" in folder.error(model="here")
    assert "it has no edge side" in folder.error(model="up")
    assert "this model gives 'scores' (tensor)" in folder.error(model="linear")
    folder.out.mkdir()
    assert "not a file; expected a log" in folder.error()
    folder.data = folder.path / "gone"
    assert "expected a folder" in folder.error()


def test_a_log_that_cannot_be_written_is_told(folder: Folder, service: str) -> None:
    folder.write(service)
    folder.pictures(1)
    folder.out = folder.path / "gone" / "log.jsonl"
    assert "cannot be written" in folder.error()


def test_an_agent_without_a_cloud_is_refused(folder: Folder) -> None:
    folder.write("127.0.0.1:1")
    config = json.loads((folder.path / "agent.yaml").read_text())
    del config["cloud"]
    (folder.path / "agent.yaml").write_text(json.dumps(config))
    folder.pictures(1)
    assert "cloud: this key is missing" in folder.error()
