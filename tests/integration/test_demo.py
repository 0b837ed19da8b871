"""`upwell demo` as a person runs it: real processes, real sockets, real digits."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.in_process import CommandResult, InProcess
from upwell.edge.config import AgentConfig
from upwell.edge.request.answer import Answer, Timings
from upwell.shared.config.yaml import load_yaml
from upwell.shared.errors import ConfigError
from upwell.shared.oip.grpc.client.client import OipClient
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.reasons import Plan, Reason, Route
from upwell.tools.demo.demo_requests import DemoOutcome, DemoRun, summarize, sweep
from upwell.tools.demo.demonstration import CloudProcess, ServiceNotStarted
from upwell.tools.demo.digit_data import DIGITS, PAGES, DemoCase, demo_cases
from upwell.tools.demo.output_folder import POLICY, DemoFolder

for package in ("onnxruntime", "grpc_health", "grpc_reflection"):
    pytest.importorskip(package)

_RUN = "from upwell.tools.cli import main; main()"
_LIMIT_S = 90


def demo(*arguments: object, without: Sequence[str] = ()) -> CommandResult:
    """Run the command in a process of its own, as if the packages in `without` were not installed."""
    hidden = f"import sys; sys.modules.update(dict.fromkeys({list(without)!r})); "
    command = [sys.executable, "-c", hidden + _RUN, "demo", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=_LIMIT_S)
    assert "Traceback" not in done.stderr
    return CommandResult(done.returncode, done.stdout, done.stderr)


def accepts(endpoint: str) -> bool:
    host, _, port = endpoint.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


@dataclass(frozen=True)
class Finished:
    """One quick demo that ended well, in `out`, told as JSON. Its requests have deadlines: tests of it are `alone`."""

    report: dict[str, Any]
    out: Path
    err: str


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    out = tmp_path_factory.mktemp("demo") / "out"
    ended = demo("--quick", "--json", "--out", out)
    assert ended.code == 0, ended.err
    return Finished(json.loads(ended.out), out, ended.err)


@pytest.mark.alone
def test_json_is_one_object_alone_and_the_three_runs_have_the_same_keys(quick: Finished) -> None:
    assert list(quick.report) == ["edge_only", "cloud_only", "hybrid", "outage", "video", "files"]
    assert quick.err == ""
    runs = [quick.report[name] for name in ("edge_only", "cloud_only", "hybrid")]
    assert {"accuracy", "p50_s", "p95_s", "cloud_share", "bytes_up", "reasons"} <= set(runs[0])
    for run in runs:
        assert list(run) == list(runs[0])
        assert run["answered"] == run["requests"] == sum(run["reasons"].values())
        assert run["degraded"] == 0
        assert 0 < run["p50_s"] <= run["p95_s"]
        assert list(run["kinds"]) == ["digits", "pages"]
        assert sum(kind["requests"] for kind in run["kinds"].values()) == run["requests"]
        assert sum(kind["bytes_up"] for kind in run["kinds"].values()) == run["bytes_up"]


@pytest.mark.alone
def test_hybrid_reads_more_than_the_device_alone_and_sends_up_less_than_forty_percent(quick: Finished) -> None:
    edge, cloud, hybrid = (quick.report[name] for name in ("edge_only", "cloud_only", "hybrid"))
    assert hybrid["accuracy"] > edge["accuracy"] + 0.02
    assert 0.05 < hybrid["cloud_share"] < 0.4
    assert (edge["cloud_share"], edge["bytes_up"], edge["reasons"]) == (0, 0, {"no_cloud": edge["requests"]})
    assert (cloud["cloud_share"], cloud["reasons"]) == (1, {"no_edge": cloud["requests"]})
    assert 0 < hybrid["bytes_up"] < cloud["bytes_up"]
    assert set(hybrid["reasons"]) == {"easy", "hard", "large"}
    assert hybrid["kinds"]["pages"]["cloud_share"] == 1


@pytest.mark.alone
def test_answers_keep_coming_when_the_cloud_is_killed(quick: Finished) -> None:
    outage = quick.report["outage"]
    assert outage["answered"] == outage["requests"] == 60
    assert outage["late"] <= 1
    assert outage["cloud_after_kill"] == 0
    assert outage["before"]["degraded"] == 0
    assert outage["after"]["requests"] == 60 - outage["killed_after"]
    degraded = {name: n for name, n in outage["after"]["reasons"].items() if name != "easy"}
    assert set(degraded) <= {"cloud_unavailable", "breaker_open", "cloud_deadline"}
    assert outage["degraded"] == outage["after"]["degraded"] == sum(degraded.values()) > 0


@pytest.mark.alone
def test_the_video_is_counted_and_read_though_the_cloud_is_killed(quick: Finished) -> None:
    video = quick.report["video"]
    assert video["answered"] == video["frames"] > video["killed_after"] > 0
    assert video["late"] == 0
    for true, told in (video["entered"], video["passed"]):
        assert told == true > 0
    assert video["read_right"] >= video["cards"] - 1
    assert set(video["read_by"]) == {"edge", "cloud"}
    events = [json.loads(line) for line in (quick.out / "events.jsonl").read_text().splitlines()]
    assert len(events) == video["entered"][1] + video["passed"][1]
    with Image.open(quick.out / "pictures" / "cards.jpg") as picture:
        assert picture.size == (640, 480)


@pytest.mark.alone
def test_folder_holds_a_working_example(quick: Finished) -> None:
    files = [Path(name) for name in quick.report["files"]]
    assert all(path.is_file() for path in files)
    assert {path.relative_to(quick.out).parts[0] for path in files} == {
        *("agent.yaml", "agent-edge-only.yaml", "agent-cloud-only.yaml", "policy.yaml", "edge", "cloud", "pictures"),
        *("plot.png", "report.json", "agent.log", "cloud.log", "agent-cards.yaml", "pipelines.yaml"),
        *("cards.mp4", "events.jsonl", "cloud-video.log"),
    }
    assert json.loads((quick.out / "report.json").read_text()) == quick.report
    config = load_yaml(quick.out / "agent.yaml", AgentConfig)
    assert config.policy == quick.out / "policy.yaml"
    for name in (DIGITS, PAGES):
        edge, cloud = config.models[name].edge, config.models[name].cloud
        assert edge is not None
        assert edge.bundle is not None
        assert (edge.bundle / "model.onnx").is_file()
        assert cloud is not None
        assert (quick.out / "cloud" / cloud.model / "1" / "model.onnx").is_file()
    with Image.open(quick.out / "plot.png") as picture:
        assert picture.width > 1000
        assert len(picture.convert("RGB").getcolors(1 << 24) or []) > 100
    assert "the cloud is failing" in (quick.out / "agent.log").read_text()
    with (
        Image.open(quick.out / "pictures" / "hard.png") as hard,
        Image.open(quick.out / "pictures" / "page.png") as page,
    ):
        assert (hard.size, page.size) == ((8, 8), (80, 48))


@pytest.mark.alone
def test_service_has_ended_with_the_demo(quick: Finished) -> None:
    cloud = load_yaml(quick.out / "agent.yaml", AgentConfig).cloud
    assert cloud is not None
    assert not accepts(cloud.endpoint)


@pytest.mark.slow
def test_report_for_people_with_tflite_and_without_matplotlib(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert")
    (tmp_path / "mine.txt").write_text("mine")
    first = demo("--quick", "--runtime", "tflite", "--out", tmp_path, without=["matplotlib"])
    assert first.code == 0, first.err
    assert first.err.splitlines()[-1] == "no plot: matplotlib is not installed: pip install 'upwell[plot]'"
    assert not (tmp_path / "plot.png").exists()
    for part in (" hybrid ", "digits right", "60 of 60 requests answered", f"upwell agent -c {tmp_path}/agent.yaml"):
        assert part in first.out
    assert "upwell model init MODEL" in first.out.splitlines()[-1]
    assert "runtime: tflite" in (tmp_path / "agent.yaml").read_text()
    DemoFolder(tmp_path)  # its own files may be written again
    assert (tmp_path / "mine.txt").read_text() == "mine"


@pytest.mark.slow
def test_torch_engine(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("safetensors")
    ended = demo("--quick", "--json", "--engine", "torch", "--out", tmp_path)
    assert ended.code == 0, ended.err
    report = json.loads(ended.out)
    assert report["hybrid"]["accuracy"] > report["edge_only"]["accuracy"]
    assert report["outage"]["answered"] == report["outage"]["requests"]


@pytest.mark.parametrize(
    ("engine", "missing", "extra"),
    [("onnx", "grpc_health", "cloud"), ("onnx", "onnxruntime", "cloud"), ("torch", "torch", "torch")],
)
def test_missing_extra_is_named_before_anything_is_written(
    in_process: InProcess, tmp_path: Path, engine: str, missing: str, extra: str
) -> None:
    ended = in_process("demo", "--engine", engine, "--out", tmp_path / "out", without=[missing])
    assert (ended.code, ended.out) == (2, "")
    assert f"needs {missing} for engine {engine}: pip install 'upwell[{extra}]'" in ended.err
    assert ended.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("foreign", ["agent.yaml", "edge/digits/model.onnx", "plot.png", "events.jsonl.1"])
def test_file_of_somebody_else_is_never_written_over(in_process: InProcess, tmp_path: Path, foreign: str) -> None:
    path = tmp_path / foreign
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")
    ended = in_process("demo", "--quick", "--out", tmp_path)
    assert ended.code == 2
    assert f"{path}: exists and was not written by `upwell demo`; choose another --out" in ended.err
    assert path.read_text() == "mine"
    assert [one for one in tmp_path.rglob("*") if one.is_file()] == [path]


def test_folder_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="choose another --out"):
        DemoFolder(tmp_path / "file")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "policy.yaml").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="was not written by `upwell demo`"):
        DemoFolder(tmp_path / "links")
    (tmp_path / ".upwell-demo.json").write_text("no list")
    with pytest.raises(ConfigError, match="remove it, or choose another"):
        DemoFolder(tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
@pytest.mark.parametrize(
    ("number", "code"), [pytest.param(signal.SIGINT, 130, marks=pytest.mark.exhaustive), (signal.SIGTERM, 143)]
)
def test_signal_mid_run_ends_the_service_too(tmp_path: Path, number: signal.Signals, code: int) -> None:
    ours, theirs = os.openpty()
    command = [sys.executable, "-c", _RUN, "demo", "--out", str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=theirs, env={**os.environ, "TERM": "xterm"}
    ) as process:
        os.close(theirs)
        seen = b""
        while b"cloud only" not in seen:  # the second of four progress bars
            seen += os.read(ours, 65536)
        endpoint = str((tmp_path / "agent.yaml").read_text().split('endpoint: "')[1].split('"')[0])
        process.send_signal(number)
        while _read_or_end(ours):
            pass
        assert process.wait(_LIMIT_S) == code
        assert process.stdout is not None
        assert process.stdout.read() == b""
    os.close(ours)
    assert not accepts(endpoint)


def _read_or_end(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # how Linux says that nobody has the other end open any more
        return b""


def test_service_that_dies_at_its_start_is_quoted(tmp_path: Path) -> None:
    with (
        pytest.raises(ServiceNotStarted, match=r"ended at its start with exit code 2; its output:\n.*no such folder"),
        CloudProcess(tmp_path / "nothing", "onnx", tmp_path / "log"),
    ):
        pytest.fail("it cannot have started")
    assert "no such folder" in (tmp_path / "log").read_text()


@pytest.mark.slow
def test_service_ends_with_its_block_whatever_happens_in_it(tmp_path: Path) -> None:
    folder = DemoFolder(tmp_path)
    folder.write_models()
    endpoint = ""
    with pytest.raises(KeyboardInterrupt), CloudProcess(tmp_path / "cloud", "onnx", tmp_path / "log") as cloud:  # noqa: PT012  the block is what is tested
        endpoint = cloud.endpoint
        client = OipClient(endpoint)
        assert client.ready(5.0, "digits-large")
        client.close()
        raise KeyboardInterrupt
    assert not accepts(endpoint)
    assert "draining" in (tmp_path / "log").read_text()


def test_cases_are_the_same_every_time_and_pages_a_minority() -> None:
    cases = demo_cases(30, 2)
    assert [case.png for case in cases] == [case.png for case in demo_cases(30, 2)]
    assert sorted({(case.model, len(case.labels)) for case in cases}) == [(DIGITS, 1), (PAGES, 60)]
    assert [case.model for case in cases].count(PAGES) == 2


def outcome(case: DemoCase, read: Sequence[int], margin: float, route: Route = Route.EDGE) -> DemoOutcome:
    """An answer that reads `read`, each with that lead over the second class."""
    scores = np.zeros((1, len(read), 10), np.float32)
    scores[0, range(len(read)), read] = (1 + margin) / 2
    scores[0, range(len(read)), [(digit + 1) % 10 for digit in read]] = (1 - margin) / 2
    outputs = {"scores": scores[:, 0] if case.model == DIGITS else scores}
    uplink_s = 0.01 if route is Route.CLOUD else None
    answer = Answer(outputs, route, Reason.EASY, False, Plan.CASCADE, Timings(0.02, uplink_s=uplink_s), "1", (route,))
    return DemoOutcome(case, 0.0, 0.02, answer)


def test_sweep_sends_large_cases_first_then_the_hardest(tmp_path: Path) -> None:
    folder = DemoFolder(tmp_path)
    folder.write_settings("onnx", "127.0.0.1:1")
    settings = load_yaml(folder.file(POLICY), Policy).settings(None, None)
    single = [DemoCase(DIGITS, b"png", np.array([1])) for _ in range(3)]
    page = DemoCase(PAGES, b"p" * 2000, np.array([1, 1]))
    edge = [outcome(single[0], [1], 0.9), outcome(page, [1, 2], 0.8), outcome(single[1], [2], 0.1)]
    edge.append(outcome(single[2], [3], 0.5))
    cloud = [outcome(one.case, [1] * len(one.case.labels), 1.0, Route.CLOUD) for one in edge]
    curve = sweep(edge, cloud, settings)
    np.testing.assert_allclose(curve.shares, [1 / 4, 2 / 4, 3 / 4, 1])
    np.testing.assert_allclose(curve.accuracies, [3 / 5, 4 / 5, 1, 1])


def test_summary_counts_digits_and_an_error_as_wrong() -> None:
    single, page = DemoCase(DIGITS, b"png", np.array([1])), DemoCase(PAGES, b"png", np.array([1, 2, 3]))
    right = outcome(single, [1], 0.9)
    partly = outcome(page, [1, 2, 4], 0.9, Route.CLOUD)
    failed = DemoOutcome(single, 0.0, 0.1, None, "CloudFailed")
    found = summarize(DemoRun((right, partly, failed), {DIGITS: 5, PAGES: 7}))
    assert (found.requests, found.answered, found.digits, found.bytes_up) == (3, 2, 5, 12)
    assert found.accuracy == pytest.approx(3 / 5)
    assert found.cloud_share == pytest.approx(1 / 3)
    assert found.reasons == {"easy": 2, "CloudFailed": 1}
    assert found.p50_s == pytest.approx(0.02)
    assert found.kinds[PAGES].accuracy == pytest.approx(2 / 3)
