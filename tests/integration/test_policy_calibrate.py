"""`upwell policy calibrate` from files to files, and how a request log is read."""

from __future__ import annotations

import json
import math
import os
import re
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from upwell.edge.policy.router_service import RouterService
from upwell.shared.config.yaml import load_yaml
from upwell.shared.errors import ConfigError
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.policy.settings import HardSettings, ModelPair
from upwell.shared.routing.request_log_line import LONGEST_LINE_BYTES, LogLine
from upwell.shared.units import parse_share
from upwell.tools.policy.calibrate_cli import calibrate
from upwell.tools.policy.check_cli import check
from upwell.tools.policy.policy_yaml_writer import as_percent
from upwell.tools.policy.request_log_reader import read_log
from upwell.tools.policy.simulate_cli import simulate

POLICY = """\
# What goes to the cloud.
version: 1
timezone: "Europe/Berlin"     # for hours
defaults:
  deadline: 300ms   # the caller may ask for less
  hard: {measure: margin, below: 0.350}   # until calibrated
  large: {above: 150kB}

# The rules; their order counts.
rules:
  - {name: private, match: {tags: {privacy: device}}, egress: deny}   # by contract
  - name: night
    match: {hours: '22:00-06:00'}
    set:
      deadline: 0.5s

models:
  digits: {deadline: 200ms}
  pages:
    hard:
      measure: entropy   # pages have many digits
      above: 0.5
# The end.
"""

Run = Callable[..., Any]
"""The command line's arguments -> click's result."""


@pytest.fixture
def run() -> Run:
    app = typer.Typer()
    app.command("calibrate")(calibrate)
    app.command("simulate")(simulate)
    app.command("check")(check)
    return lambda *arguments: CliRunner().invoke(app, [str(one) for one in arguments])


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY, encoding="utf-8")
    return path


def requests(count: int, seed: int = 0, **fields: Any) -> list[dict[str, Any]]:
    """A device that is right in about 85 %, a cloud in 97 %, requests of 20 to 200 kB."""
    rng = np.random.default_rng(seed)
    made = []
    for index, margin in enumerate(rng.beta(2.0, 1.0, count).tolist()):
        right = bool(rng.random() >= 0.5 * (1 - margin) ** 1.2)
        made.append(
            {
                "t_s": index / 5,
                "model": "digits",
                "size_bytes": int(rng.integers(20_000, 200_000)),
                "edge_s": 0.01,
                "cloud_s": 0.01,
                "hardness": {"margin": margin, "entropy": (1 - margin) ** 2},
                "edge_correct": right,
                "cloud_correct": bool(rng.random() < 0.97),
                **fields,
            }
        )
    return made


def log(tmp_path: Path, made: list[dict[str, Any]], name: str = "log.jsonl") -> Path:
    path = tmp_path / name
    path.write_text("".join(json.dumps(one) + "\n" for one in made))
    return path


def hard_of(path: Path, model: str = "digits", model_pair: ModelPair | None = None) -> HardSettings:
    hard = load_yaml(path, Policy).settings(model, None, model_pair).hard
    assert hard is not None
    return hard


@pytest.mark.slow
def test_a_share_is_chosen_written_and_held_in_simulation(run: Run, policy: Path, tmp_path: Path) -> None:
    logged, out = log(tmp_path, requests(3000)), tmp_path / "out.yaml"
    result = run("calibrate", policy, "--log", logged, "--out", out, "--cloud-share", "30%", "--json")
    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.stdout)["calibrations"]
    hard = hard_of(out)
    assert (hard.cloud_share, hard.calibrated, hard.threshold) == (0.3, True, found["below"])
    fresh = log(tmp_path, requests(3000, seed=1), "fresh.jsonl")
    replay = run("simulate", out, "--requests", fresh, "--uplink", "1000Mbps", "--rtt", "20ms", "--json")
    assert replay.exit_code == 0, replay.output
    assert json.loads(replay.stdout)["policy"]["cloud_share"] == pytest.approx(0.3, abs=0.02)


@pytest.mark.parametrize("target", [("--cloud-share", "30%"), ("--max-risk", "5%")], ids=["share", "risk"])
def test_right_after_calibration_a_check_has_no_doubts(run: Run, tmp_path: Path, target: tuple[str, str]) -> None:
    """Written for every model: a calibration names the one that it is for."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: 1\ndefaults: {hard: {measure: margin, below: 0.35}}\n", encoding="utf-8")
    logged = log(tmp_path, requests(3000, edge_digest="E", edge_runtime="onnx cpu", cloud_digest="C"))
    assert run("calibrate", policy, "--log", logged, "--out", policy, *target).exit_code == 0
    found = json.loads(run("check", policy, "--json").stdout)
    assert (found["ok"], found["problems"], found["warnings"]) == (True, [], [])


@pytest.mark.slow
def test_the_next_version_can_be_calibrated_for_before_it_comes(run: Run, policy: Path, tmp_path: Path) -> None:
    """Of each pair of models one calibration, beside one another; what runs says which of them holds."""
    first = log(tmp_path, requests(3000, edge_digest="E1", cloud_digest="C1"))
    assert run("calibrate", policy, "--log", first, "--out", policy, "--cloud-share", "30%").exit_code == 0
    pairs = [("E1", "C1"), ("E1", "C2"), ("E2", "C1"), ("E2", "C2")]
    for seed, (edge, cloud) in enumerate(pairs[1:], 1):
        made = requests(3000, seed, edge_digest=edge, cloud_digest=cloud)
        logged = log(tmp_path, made, f"{edge}{cloud}.jsonl")
        assert run("calibrate", policy, "--log", logged, "--out", policy, "--cloud-share", "30%").exit_code == 0
    thresholds = []
    for edge, cloud in pairs:
        cell = RouterService(load_yaml(policy, Policy), {"digits": ModelPair(edge)})
        cell.identify_cloud("digits", cloud)
        assert cell.misfit("digits") == ""
        thresholds.append(hard_of(policy, model_pair=ModelPair(edge, "", cloud)).threshold)
    assert len(set(thresholds)) == 4


@pytest.mark.slow
def test_a_risk_is_chosen_written_and_held_in_simulation(run: Run, policy: Path, tmp_path: Path) -> None:
    logged, out = log(tmp_path, requests(5000)), tmp_path / "out.yaml"
    result = run(
        "calibrate", policy, "--log", logged, "--out", out, "--max-risk", "3%", "--confidence", "90%", "--json"
    )
    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.stdout)["calibrations"]
    assert found["evidence"]["chosen_risk"] < found["evidence"]["chosen_risk_bound"] <= 0.03
    hard = hard_of(out)
    assert (hard.max_risk, hard.calibrated, hard.threshold) == (0.03, True, found["below"])
    fresh = requests(5000, seed=1)
    replay = run(
        "simulate", out, "--requests", log(tmp_path, fresh, "fresh.jsonl"), "--uplink", "1000Mbps", "--rtt", "1ms",
        "--json",
    )  # fmt: skip
    document = json.loads(replay.stdout)
    lost = document["oracle"]["accuracy"] - document["policy"]["accuracy"]
    assert lost < 0.05, "kept and wrong, and the few that the device had right and the cloud has not"
    assert document["oracle"]["accuracy"] - document["edge_only"]["accuracy"] > 0.1
    assert document["policy"]["reasons"].get("uncalibrated", 0) == 0


def test_everything_else_in_the_file_stays(run: Run, policy: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.yaml"
    logged = log(tmp_path, requests(2000))
    assert run("calibrate", policy, "--log", logged, "--out", out, "--cloud-share", "30%").exit_code == 0
    before, after = POLICY.splitlines(), out.read_text(encoding="utf-8").splitlines()
    changed = "  hard: {measure: margin, cloud_share: 30%, below: 0.350} # until calibrated"
    assert [line if line != after[5] else changed for line in after[: len(before)]] == [
        changed if index == 5 else line for index, line in enumerate(before)
    ]
    assert after[5] == changed
    assert after[len(before)] == "calibrations:"
    assert policy.read_text(encoding="utf-8") == POLICY


@pytest.mark.exhaustive
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_file_may_be_calibrated_in_place_again_and_again(
    run: Run, policy: Path, tmp_path: Path, newline: str
) -> None:
    policy.write_bytes(POLICY.replace("\n", newline).encode())
    policy.chmod(0o640)
    logged = log(tmp_path, requests(2000))
    texts = []
    for target in ("--max-risk=5%", "--max-risk=5%", "--cloud-share=30%", "--cloud-share=30%", "--max-risk=5%"):
        result = run("calibrate", policy, "--log", logged, "--out", policy, target)
        assert result.exit_code == 0, result.output
        texts.append(policy.read_bytes())
        hard = hard_of(policy)
        assert hard.calibrated
        assert (hard.max_risk if "risk" in target else hard.cloud_share) in (0.05, 0.3)
    assert texts[0] == texts[1]
    assert texts[2] == texts[3]
    assert texts[4].count(b"- model: digits") == 2
    assert texts[4].count(newline.encode()) == texts[4].count(b"\n")
    assert stat.S_IMODE(policy.stat().st_mode) == 0o640
    assert all(comment in texts[4].decode() for comment in re.findall("#.*", POLICY))


def test_the_target_goes_where_hard_is_written(run: Run, policy: Path, tmp_path: Path) -> None:
    """`pages` has a `hard` of its own, in another measure; `digits` shares that of the defaults."""
    made = requests(4000)
    for index, one in enumerate(made):
        one["model"] = ("digits", "pages")[index % 2]
    out = tmp_path / "out.yaml"
    result = run("calibrate", policy, "--log", log(tmp_path, made), "--out", out, "--cloud-share", "30%", "--json")
    assert result.exit_code == 0, result.output
    found = {one["model"]: one for one in json.loads(result.stdout)["calibrations"]}
    assert hard_of(out, "pages").threshold == found["pages"]["above"]
    assert hard_of(out, "digits").threshold == found["digits"]["below"]
    written = load_yaml(out, Policy).models["digits"]
    assert "hard" not in written.model_fields_set
    others = hard_of(out, "another")
    assert (others.calibrated, others.threshold) == (False, 0.35)


def test_a_target_that_others_are_calibrated_for_stays(run: Run, policy: Path, tmp_path: Path) -> None:
    made = requests(4000)
    for index, one in enumerate(made):
        one["model"] = ("digits", "letters")[index % 2]
    logged = log(tmp_path, made)
    assert run("calibrate", policy, "--log", logged, "--out", policy, "--cloud-share", "30%").exit_code == 0
    one_model = ("--model", "letters", "--max-risk", "5%")
    assert run("calibrate", policy, "--log", logged, "--out", policy, *one_model).exit_code == 0
    assert (hard_of(policy).cloud_share, hard_of(policy).calibrated) == (0.3, True)
    assert (hard_of(policy, "letters").max_risk, hard_of(policy, "letters").calibrated) == (0.05, True)


def test_each_pair_of_models_in_the_log_gets_its_own(run: Run, policy: Path, tmp_path: Path) -> None:
    """Those with too few lines are named and left out; the others hold."""
    made = [
        *requests(2000, edge_digest="sha256:1", edge_runtime="onnx/cpu", cloud_digest="sha256:9"),
        *requests(2000, seed=2, edge_digest="sha256:2", edge_runtime="onnx/cpu", cloud_digest="sha256:9"),
        *requests(20, seed=3, edge_digest="sha256:3", edge_runtime="onnx/cpu", cloud_digest="sha256:9"),
    ]
    out = tmp_path / "out.yaml"
    result = run("calibrate", policy, "--log", log(tmp_path, made), "--out", out, "--cloud-share", "30%", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert [one["edge_digest"] for one in document["calibrations"]] == ["sha256:1", "sha256:2"]
    assert [one["edge_digest"] for one in document["refused"]] == ["sha256:3"]
    assert "sha256:3" in result.stderr
    for one in document["calibrations"]:
        assert hard_of(out, "digits", ModelPair(one["edge_digest"], "onnx/cpu", "sha256:9")).threshold == one["below"]
        assert not hard_of(out, "digits", ModelPair(one["edge_digest"], "tflite/cpu", "")).calibrated


def test_a_rule_about_hours_counts_where_the_log_knows_the_hour(run: Run, policy: Path, tmp_path: Path) -> None:
    policy.write_text('rules:\n- {name: night, match: {hours: "22:00-06:00"}, set: {hard: {below: 0.2}}}\n')
    made = requests(3000)
    from_any_zero, at_night = (
        log(tmp_path, made),
        log(tmp_path, [_at(1_778_630_400.0, one) for one in made], "unix.jsonl"),
    )
    assert run("calibrate", policy, "--log", from_any_zero, "--out", policy, "--cloud-share", "20%").exit_code == 0
    assert hard_of(policy).calibrated
    refused = run("calibrate", policy, "--log", at_night, "--out", policy, "--cloud-share", "20%")
    assert refused.exit_code == 1
    assert "rules, size or missing scores decide every request" in refused.stderr


def _at(zero_s: float, request: dict[str, Any]) -> dict[str, Any]:
    return {**request, "t_s": zero_s + request["t_s"]}


def test_what_nobody_knows_may_be_null_in_a_log(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    recorded = LogLine(t_s=1, model="digits", size_bytes=2, hardness={"margin": math.nan, "entropy": 0.5})
    unknown = {key: None for key in LogLine.model_fields if key not in ("t_s", "model", "size_bytes")}
    path.write_text(
        recorded.model_dump_json() + "\n" + json.dumps({"t_s": 2, "model": "a", "size_bytes": 3, **unknown})
    )
    first, second = read_log(path)
    assert first.hardness == {"entropy": 0.5}
    assert second == LogLine(t_s=2, model="a", size_bytes=3)


def test_too_small_a_log_is_refused_and_nothing_is_written(run: Run, policy: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.yaml"
    result = run("calibrate", policy, "--log", log(tmp_path, requests(100)), "--out", out, "--max-risk", "2%")
    assert result.exit_code == 1
    assert "at least 149 are needed" in result.stderr
    assert "nothing is written" in result.stderr
    assert result.stdout == ""
    assert sorted(os.listdir(tmp_path)) == ["log.jsonl", "policy.yaml"]


def test_one_model_out_of_reach_stops_all_and_says_so_as_json(run: Run, policy: Path, tmp_path: Path) -> None:
    made = [*requests(2000), *requests(50, seed=1, model="pages")]
    logged, out = log(tmp_path, made), tmp_path / "out.yaml"
    result = run("calibrate", policy, "--log", logged, "--out", out, "--cloud-share", "30%", "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert document["out"] is None
    assert [one["model"] for one in document["refused"]] == ["pages"]
    assert not out.exists()
    only = run("calibrate", policy, "--log", logged, "--out", out, "--cloud-share", "30%", "--model", "digits")
    assert only.exit_code == 0, only.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "one of --cloud-share"),
        (["--cloud-share", "20%", "--max-risk", "2%"], "one of --cloud-share"),
        (["--cloud-share", "0%"], "more than 0% and less than 100%"),
        (["--cloud-share", "20"], "write 20"),
        (["--max-risk", "nan"], "--max-risk"),
        (["--max-risk", "2%", "--confidence", "100%"], "--confidence"),
        (["--max-risk", "2%", "--model", "cats"], "it has digits"),
        (["--max-risk", "5%", "--plot", "risk.bmp"], ".png, .svg, .pdf"),
    ],
)
def test_wrong_use_is_said(run: Run, policy: Path, tmp_path: Path, arguments: list[str], words: str) -> None:
    out = tmp_path / "out.yaml"
    result = run("calibrate", policy, "--log", log(tmp_path, requests(500)), "--out", out, *arguments)
    assert isinstance(result.exception, ConfigError)
    assert words in str(result.exception)
    assert not out.exists()


def test_a_model_with_hard_off_is_refused(run: Run, policy: Path, tmp_path: Path) -> None:
    policy.write_text("models: {digits: {hard: off}}\n")
    result = run(
        "calibrate", policy, "--log", log(tmp_path, requests(500)), "--out", tmp_path / "out", "--cloud-share", "20%"
    )
    assert "hard is off for 'digits'" in str(result.exception)


def test_an_alias_is_not_changed_behind_ones_back(run: Run, policy: Path, tmp_path: Path) -> None:
    policy.write_text(
        "defaults: {hard: &h {below: 0.3}}\n"
        "rules: [{name: a, match: {}, set: {hard: *h}}]\n"
        "models: {other: {hard: *h}}\n"
    )
    out = tmp_path / "out.yaml"
    result = run("calibrate", policy, "--log", log(tmp_path, requests(500)), "--out", out, "--cloud-share", "30%")
    assert "write it out" in str(result.exception)
    assert not out.exists()


@pytest.mark.parametrize("text", ["{}\n", "version: 1\n", "models: {}\n", "defaults: {deadline: 1s}   # d\n"])
def test_a_policy_that_says_little_gets_what_it_lacks(run: Run, policy: Path, tmp_path: Path, text: str) -> None:
    policy.write_text(text)
    out = tmp_path / "out.yaml"
    made = log(tmp_path, [{**one, "size_bytes": 10} for one in requests(1000)])
    result = run("calibrate", policy, "--log", made, "--out", out, "--cloud-share", "20%")
    assert result.exit_code == 0, result.output
    assert hard_of(out).calibrated


def test_the_table_says_what_was_chosen(run: Run, policy: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.yaml"
    result = run("calibrate", policy, "--log", log(tmp_path, requests(3000)), "--out", out, "--max-risk", "3%")
    assert re.search(r"digits, chosen +1?\d+ +\d+\.\d% +\d\.\d% +[23]\.\d%", result.stdout)
    assert "with 95% confidence at most 3% of all requests are kept and wrong" in result.stdout


def test_a_name_in_the_log_does_not_command_the_terminal(run: Run, policy: Path, tmp_path: Path) -> None:
    named = requests(1000, model="\x1b[2J[red]ü", edge_digest="\x07")
    logged = log(tmp_path, [*named, *requests(10, model="few\x1b")])
    result = run("calibrate", policy, "--log", logged, "--out", policy, "--cloud-share", "30%")
    assert result.exit_code == 1
    only = run(
        "calibrate", policy, "--log", logged, "--out", policy, "--cloud-share", "30%", "--model", named[0]["model"]
    )
    assert "[red]ü" in only.stdout
    assert not {"\x1b", "\x07"} & set(result.output + only.output)
    assert hard_of(policy, named[0]["model"]).calibrated


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["png", *(pytest.param(one, marks=pytest.mark.exhaustive) for one in ("svg", "pdf"))])
def test_the_picture_is_drawn(run: Run, policy: Path, tmp_path: Path, kind: str) -> None:
    pytest.importorskip("matplotlib")
    made = [*requests(1500), *requests(1500, model="pages $x_1$")]
    plot = tmp_path / f"risk.{kind}"
    result = run(
        "calibrate", policy, "--log", log(tmp_path, made), "--out", policy, "--cloud-share", "30%", "--plot", plot
    )
    assert result.exit_code == 0, result.output
    assert plot.read_bytes().startswith({"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[kind])


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_said(run: Run, policy: Path, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    result = run(
        "calibrate", policy, "--log", log(tmp_path, requests(1000)), "--out", closed / "p.yaml", "--cloud-share", "30%"
    )
    assert "cannot be written" in str(result.exception)


def test_a_place_that_is_none_is_said_and_leaves_nothing(run: Run, policy: Path, tmp_path: Path) -> None:
    logged = log(tmp_path, requests(1000))
    for place in (tmp_path / "no" / "p.yaml", tmp_path):
        result = run("calibrate", policy, "--log", logged, "--out", place, "--cloud-share", "30%")
        assert isinstance(result.exception, ConfigError)
        assert "cannot be written" in str(result.exception)
    assert sorted(os.listdir(tmp_path)) == ["log.jsonl", "policy.yaml"]


def test_a_link_stays_a_link(run: Run, policy: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.yaml"
    link.symlink_to(policy)
    logged = log(tmp_path, requests(1000))
    assert run("calibrate", link, "--log", logged, "--out", link, "--cloud-share", "30%").exit_code == 0
    assert link.is_symlink()
    assert hard_of(policy).calibrated


def test_wrong_lines_of_a_log_are_named(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    right = json.dumps(requests(1)[0])
    path.write_text(
        f'{right}\nnope\n\n{{"t_s": -1, "model": "m", "size_bytes": 1}}\n{right[:-1]}, "x": 1}}\n[1]\n{{"t_s"'
    )
    with pytest.raises(ConfigError) as caught:
        read_log(path)
    assert [problem.line for problem in caught.value.problems] == [2, 4, 5, 6, 7]
    texts = [problem.message for problem in caught.value.problems]
    assert "expected a JSON object" in texts[0]
    assert "unknown key" in texts[2]
    assert "truncated" in texts[4]


def test_a_line_with_supports_that_are_not_those_of_its_chances_is_named(tmp_path: Path) -> None:
    path = log(tmp_path, [requests(1)[0], {**requests(1)[0], "chances": [0.9, 0.2], "supports": [1.0]}])
    with pytest.raises(ConfigError) as caught:
        read_log(path)
    (problem,) = caught.value.problems
    assert (problem.line, problem.message) == (2, "supports needs one number for each of chances")


def test_a_simulation_says_how_many_lines_lack_the_supports_that_a_policy_weighs(run: Run, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "version: 1\ndefaults: {hard: {cloud_share: 20%}}\n"
        "calibrations: [{model: digits, measure: margin, below: 0.5, cloud_share: 20%, support: -1.0}]\n"
    )
    seen = [{"supports": [3.0]}, {}, {}]
    logged = log(tmp_path, [{**one, "chances": [0.9], **more} for one, more in zip(requests(3), seen, strict=True)])
    done = run("simulate", policy, "--requests", logged, "--uplink", "1000Mbps", "--rtt", "20ms", "--json")
    assert done.exit_code == 0, done.output
    says = "2 lines have `chances` without the `supports` that it weighs, so they count as hard"
    assert done.stderr == f"{policy}: {says}\n"
    assert set(json.loads(done.stdout)["policy"]["reasons"]) == {"easy", "hard"}


@pytest.mark.parametrize("text", ["33.333333333333%", "7%", "99.9999999999%", "0.00000001%", "20%"])
def test_a_share_is_written_exactly_as_it_was_asked_for(text: str) -> None:
    """Rounded it would be another target, which decides no request of the log, or none at all."""
    assert as_percent(parse_share(text)) == text


@pytest.mark.parametrize(("count", "words"), [(50, "30 more lines are wrong"), (21, "1 more line is wrong")])
def test_many_wrong_lines_are_counted(tmp_path: Path, count: int, words: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("nope\n" * count)
    with pytest.raises(ConfigError, match=words) as caught:
        read_log(path)
    assert len(caught.value.problems) == 21


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "it contains no requests"),
        (b"\n \n", "it contains no requests"),
        (b"\xff\xfe{\n", "expected a JSON object"),
        (b'{"t_s": ' + b" " * LONGEST_LINE_BYTES + b"1}", "longer than"),
    ],
)
def test_a_file_that_is_no_log_is_said(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=words):
        read_log(path)


def test_a_log_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(ConfigError, match="larger than 512 MiB"):
        read_log(path)
    with pytest.raises(ConfigError, match="no such file"):
        read_log(tmp_path / "none")
    with pytest.raises(ConfigError, match="this is a folder"):
        read_log(tmp_path)


def test_a_byte_order_mark_and_blank_lines_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + b"\n".join(json.dumps(one).encode() for one in requests(3)) + b"\n\n")
    assert [line.t_s for line in read_log(path)] == [0.0, 0.2, 0.4]
