"""`upwell policy simulate` as a command: its JSON, its table, its picture, and what it says to a wrong file."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from tests.unit.routing.simulation.scenes import POLICY, easy, line
from upwell.shared.errors import ConfigError, UpwellError
from upwell.tools.policy.simulate_cli import simulate

WAYS = ["policy", "edge_only", "cloud_only", "random_share", "oracle"]
KEYS = [
    "requests", "answered", "deadline_hit_rate", "accuracy", "p50_s", "p95_s", "p99_s", "cloud_share", "bytes_up",
    "cost", "energy_j", "reasons",
]  # fmt: skip

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(simulate)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with a policy, a log of 200 requests and two traces."""
    (tmp_path / "policy.yaml").write_text(POLICY)
    chance = random.Random(7)
    lines = []
    for index in range(200):
        make = easy if chance.random() < 0.7 else line
        lines.append(make(index * 0.2, size_bytes=chance.randint(5_000, 50_000)).model_dump_json())
    (tmp_path / "log.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "link.up").write_text("".join(f"{at_ms}\n" for at_ms in range(0, 5000, 3) if at_ms < 3000))
    (tmp_path / "link.csv").write_text("second,Mbps\n0,8\n3,0\n5,8\n")
    return tmp_path


def run(files: Path, *arguments: str, link: tuple[str, ...] = ("--uplink", "4Mbps"), log: str = "log.jsonl") -> Result:
    paths = [str(files / "policy.yaml"), "--requests", str(files / log)]
    return CliRunner().invoke(app, [*paths, *link, "--rtt", "60ms", *arguments])


def report(result: Result) -> Any:
    assert result.exception is None, result.exception
    return json.loads(result.stdout)


def test_the_json_is_one_object_with_the_five_ways(files: Path) -> None:
    found = report(run(files, "--json"))
    assert list(found) == WAYS
    for way in WAYS:
        assert list(found[way]) == KEYS
        assert found[way]["requests"] == 200
    assert found["policy"]["answered"] == 200
    assert found["policy"]["deadline_hit_rate"] == 1.0
    assert found["edge_only"]["cloud_share"] == 0.0
    assert found["edge_only"]["accuracy"] < found["policy"]["accuracy"] <= found["oracle"]["accuracy"]
    assert found["random_share"]["accuracy"] < found["policy"]["accuracy"]


@pytest.mark.parametrize("name", ["link.up", "link.csv"])
def test_a_trace_is_read_by_its_content(files: Path, name: str) -> None:
    found = report(run(files, "--json", link=("--trace", str(files / name))))
    assert found["policy"]["answered"] == 200
    assert 0 < found["policy"]["cloud_share"] <= 0.3


def test_the_same_seed_gives_the_same_report_and_the_order_of_lines_does_not_matter(files: Path) -> None:
    lines = (files / "log.jsonl").read_text().splitlines()
    random.Random(1).shuffle(lines)
    (files / "shuffled.jsonl").write_text("\n\n".join(lines))
    first, again, other = (run(files, "--json", "--seed", seed) for seed in ("3", "3", "4"))
    assert report(first) == report(again) == report(run(files, "--json", "--seed", "3", log="shuffled.jsonl"))
    assert report(first)["random_share"] != report(other)["random_share"]


def test_a_share_of_the_fleet_is_kept_as_on_a_device(files: Path) -> None:
    alone = report(run(files, "--json"))["policy"]
    assert alone["cloud_share"] > 0.2
    shared = report(run(files, "--json", "--fleet-share", "photos=5%"))["policy"]
    assert shared["cloud_share"] <= 0.05 + 64 * 0.05 / 200
    assert shared["reasons"]["fleet_share"] > 0
    result = run(files, "--fleet-share", "digits=5%")
    assert "the log has no request for 'digits'; expected one of photos" in str(result.exception)


def test_another_policy_stands_beside_it(files: Path) -> None:
    (files / "never.yaml").write_text("defaults: {hard: off}")
    result = run(files, "--json", "--compare", str(files / "never.yaml"))
    found = report(result)
    assert list(found) == ["policy", "compare", *WAYS[1:]]
    assert found["compare"]["reasons"] == {"always_edge": 200}
    shown = run(files, "--compare", str(files / "never.yaml"))
    assert shown.exception is None
    assert "reasons (other): always_edge 200" in shown.stdout


def test_a_sweep_tries_ten_thresholds(files: Path) -> None:
    lines = [
        (easy if index % 2 else line)(index * 0.5, hardness={"margin": (index + 0.5) / 100}).model_dump_json()
        for index in range(100)
    ]
    (files / "graded.jsonl").write_text("\n".join(lines))
    swept = report(run(files, "--json", "--sweep", log="graded.jsonl"))["sweep"]
    assert [list(one) for one in swept] == [["threshold", *KEYS]] * 10
    shares = [one["cloud_share"] for one in swept]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == pytest.approx((0.05, 0.95))
    assert "fixed threshold" in run(files, "--sweep", log="graded.jsonl").stdout


def test_the_table_shows_the_ways_side_by_side(files: Path) -> None:
    result = run(files)
    assert result.exception is None
    header, *rows = result.stdout.splitlines()
    assert header.split("  ")[-1].strip() == "oracle"
    assert [row.split("  ")[0] for row in rows[:4]] == ["requests", "answered", "in time", "right and in time"]
    assert "reasons (policy): easy " in result.stdout


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("a.png", b"\x89PNG"),
        *(pytest.param(*one, marks=pytest.mark.exhaustive) for one in (("a.svg", b"<?xml"), ("a.PDF", b"%PDF"))),
    ],
)
def test_a_run_can_be_drawn(files: Path, name: str, begins: bytes) -> None:
    result = run(files, "--json", "--plot", str(files / name), link=("--trace", str(files / "link.up")))
    assert list(report(result)) == WAYS
    assert (files / name).read_bytes().startswith(begins)


def test_without_matplotlib_only_the_picture_is_missing(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run(files, "--plot", str(files / "a.png"))
    assert isinstance(result.exception, ConfigError)
    assert "pip install 'upwell[plot]'" in str(result.exception)
    assert run(files).exception is None


def test_the_hours_of_rules_count_from_the_start(files: Path) -> None:
    (files / "policy.yaml").write_text(POLICY + "\nrules: [{name: night, match: {hours: '22:00-06:00'}, route: edge}]")
    assert report(run(files, "--json"))["policy"]["cloud_share"] == 0.0
    assert report(run(files, "--json", "--start", "2024-05-01T23:00-08:00"))["policy"]["cloud_share"] > 0.1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--uplink", "4Mbps", "--trace", "x"], "give either --trace or --uplink"),
        ([], "give either --trace or --uplink"),
        (["--uplink", "4"], "--uplink: expected a bit rate"),
        (["--uplink", "0Mbps"], "--uplink: expected more than 0"),
        (["--uplink", "4Mbps", "--rtt", "60"], "--rtt: expected a duration"),
        (["--uplink", "4Mbps", "--rtt", "2h"], "--rtt: expected at most 1h"),
        (["--uplink", "4Mbps", "--start", "today"], "--start: expected a date and time"),
        (["--uplink", "4Mbps", "--start", "9999-12-31T23:00-08:00"], "--start: expected a date and time"),
        (["--uplink", "4Mbps", "--plot", "a.txt"], "expected a file that ends in .png, .svg, .pdf"),
        (["--trace", "{files}/nothing.up"], "nothing.up: cannot read the trace: No such file"),
        (["--trace", "{files}"], "cannot read the trace: Is a directory"),
        (["--trace", "{files}/policy.yaml"], "policy.yaml: line 1: expected"),
        (["--uplink", "4Mbps", "--compare", "{files}/nothing.yaml"], "nothing.yaml: no such file"),
    ],
)
def test_wrong_use_is_said_in_a_sentence(files: Path, arguments: list[str], says: str) -> None:
    result = run(files, *(argument.format(files=files) for argument in arguments), link=())
    assert isinstance(result.exception, ConfigError)
    assert says in str(result.exception)
    assert result.stdout == ""


def test_a_wrong_line_is_named_and_nothing_is_simulated(files: Path) -> None:
    text = (files / "log.jsonl").read_text().splitlines()
    (files / "wrong.jsonl").write_text("\n".join([*text[:3], "{", '{"t_s": -1}', *text[3:]]))
    result = run(files, "--json", log="wrong.jsonl")
    assert isinstance(result.exception, ConfigError)
    assert [problem.line for problem in result.exception.problems] == [4, 5]


def test_a_request_from_the_end_of_time_is_refused(files: Path) -> None:
    (files / "far.jsonl").write_text(line(1e300).model_dump_json())
    result = run(files, log="far.jsonl")
    assert isinstance(result.exception, ConfigError)
    assert "far.jsonl: request 1: t_s is at most 1e+10" in str(result.exception)


def test_a_trace_that_is_no_text_is_refused(files: Path) -> None:
    (files / "binary.up").write_bytes(b"\xff\x00\xfe")
    result = run(files, link=("--trace", str(files / "binary.up")))
    assert "not UTF-8 text" in str(result.exception)


def test_a_picture_that_cannot_be_written_is_said(files: Path) -> None:
    result = run(files, "--plot", str(files / "nowhere" / "a.png"))
    assert isinstance(result.exception, UpwellError)
    assert "cannot be written" in str(result.exception)
