"""`upwell partition plan --edge --cloud`: from two profiles to a plan, an envelope and plain words."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner, Result

from tests.models.residual_digits import build_residual_digits
from tests.unit.partition.profiles_for_tests import profile
from upwell.shared.errors import ConfigError
from upwell.shared.partition.plan_file import AdviceFacts, PlanFacts
from upwell.shared.partition.tier_profile import Profile, load_profile
from upwell.tools.partition.plan_cli import plan
from upwell.tools.partition.profile_cli import profile as take_profile

SIZES = [602_112, 1_605_632, 802_816, 401_408, 200_704, 100_352, 50_176, 25_088, 5_120, 4_000]
EDGE_S = {0: 0.0, 1: 0.010, 2: 0.020, 4: 0.045, 6: 0.065, 8: 0.085, 9: 0.090}
CLOUD_S = {0: 0.009, 2: 0.006, 4: 0.004, 6: 0.003, 8: 0.0005, 9: 0.0}

app = typer.Typer(pretty_exceptions_enable=False)
app.command("plan")(plan)
app.command("profile")(take_profile)


def run(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "120"}).invoke(app, ["plan", *arguments])


@pytest.fixture
def profiles(tmp_path: Path) -> list[str]:
    """The arguments of two profiles; 224 x 224 x 3 floats go in."""
    return written(tmp_path, profile("edge", EDGE_S, SIZES, [1] * 9), profile("cloud", CLOUD_S, SIZES, [1] * 9))


def written(folder: Path, edge: Profile, cloud: Profile) -> list[str]:
    (folder / "edge.json").write_text(edge.model_dump_json())
    (folder / "cloud.json").write_text(cloud.model_dump_json())
    return ["--edge", str(folder / "edge.json"), "--cloud", str(folder / "cloud.json")]


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    """A photo's worth of edges and noise."""
    rows, columns = np.mgrid[0:480, 0:640]
    waves = 128 + 90 * np.sin(columns / 17.0) * np.cos(rows / 29.0)
    noise = np.random.default_rng(0).normal(0, 6, (480, 640, 3))
    pixels = np.clip(np.stack([waves, waves[:, ::-1], columns * 0.4], axis=2) + noise, 0, 255)
    Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "photo.jpg", quality=92)
    return tmp_path / "photo.jpg"


def planned(arguments: list[str], *more: str) -> PlanFacts:
    result = run(*arguments, "--json", *more)
    assert result.exception is None, result.exception
    return PlanFacts.model_validate_json(result.stdout)


def advised(arguments: list[str], *more: str) -> AdviceFacts:
    found = planned(arguments, *more).advice
    assert found is not None
    return found


LINK = ("--uplink", "50Mbps", "--rtt", "10ms")


def test_the_plan_is_the_best_cut_and_says_what_it_sends(profiles: list[str]) -> None:
    found = planned(profiles, *LINK)
    assert [name for name, tier in found.placement.items() if tier == "edge"] == ["n0", "n1", "n2", "n3", "n4"]
    assert found.total_s == pytest.approx(0.055 + 0.0035 + 0.01 + (100_352 + 4_000) * 8 / 50e6)
    assert [(one.tensor, one.from_, one.to, one.bytes) for one in found.sent] == [("t5", "edge", "cloud", 100_352)]
    assert found.baselines.edge_only_s == pytest.approx(0.09)
    assert found.baselines.cloud_only_s == pytest.approx(0.009 + 0.01 + (602_112 + 4_000) * 8 / 50e6)
    assert found.model == "1a2b3c4d" * 8
    totals = [other.total_s for other in found.alternatives]
    assert totals == sorted(totals)
    assert all(total >= found.total_s for total in totals)
    assert found.placement not in [other.placement for other in found.alternatives]


def test_the_envelope_tells_what_a_look_up_needs(profiles: list[str]) -> None:
    """Every piece gives the total of the plan that is made for a bandwidth inside of it."""
    pieces = planned(profiles, *LINK).envelope
    assert [piece.name for piece in pieces] == ["edge", "c6", "c5", "cloud"]
    assert pieces[0].from_bps is None
    assert pieces[-1].to_bps is None
    for before, after in itertools.pairwise(pieces):
        assert before.to_bps == after.from_bps
    for piece in pieces:
        bps = round(((piece.from_bps or 1e6) * (piece.to_bps or 1e9)) ** 0.5)
        inside = planned(profiles, "--uplink", f"{bps}bps", "--rtt", "10ms")
        assert inside.placement == piece.placement
        assert inside.total_s == pytest.approx(piece.base_s + piece.bytes * 8 / bps, rel=1e-9)
        waits = 0.0 if piece.name == "edge" else 0.01
        assert piece.base_s == pytest.approx(piece.edge_s + piece.cloud_s + waits)


def test_a_cut_that_pays_is_said_to(profiles: list[str]) -> None:
    advice = advised(profiles, *LINK)
    assert advice.cuts_pay
    assert advice.gain > 1.05
    assert advice.verdict == "Splitting pays: c6 from 36.1 Mbps to 42.3 Mbps, c5 from 42.3 Mbps to 81.1 Mbps."
    assert advice.best == "c5"
    assert {one.name: one.measured for one in advice.options} == {
        "edge only": True, "cloud with raw input": True, "c6": True, "c5": False,
    }  # fmt: skip
    assert any(note == "Interpolated between measured cuts: c5." for note in advice.notes)


def test_against_a_compressed_picture_it_does_not_pay_and_that_is_said_plainly(
    profiles: list[str], picture: Path
) -> None:
    advice = advised(profiles, *LINK, "--picture", str(picture))
    assert not advice.cuts_pay
    assert advice.gain == 1
    assert advice.verdict.startswith(
        "Splitting does not pay: no cut beats the best of edge only, cloud with raw input, "
    )
    by_name = {one.name: one for one in advice.options}
    raw = by_name["cloud with raw input"]
    assert [name for name in by_name if name.startswith("cloud")] == [
        "cloud with raw input", "cloud with JPEG 85", "cloud with WebP 85", "cloud with PNG",
    ]  # fmt: skip
    for name in ("cloud with JPEG 85", "cloud with WebP 85", "cloud with PNG"):
        assert by_name[name].bytes < raw.bytes
        assert by_name[name].edge_s > 0
        assert by_name[name].cloud_s > raw.cloud_s
    assert by_name["cloud with JPEG 85"].wins is not None
    assert all(one.wins is None for one in advice.options if one.kind == "cut")
    assert any(note.startswith("Against the raw input alone, a cut would win") for note in advice.notes)


def test_a_picture_is_encoded_at_the_size_of_the_input(profiles: list[str], picture: Path) -> None:
    """As large as what pillow makes of 224 x 224 pixels, and what comes back on top of it."""
    small = Image.open(picture).convert("RGB").resize((224, 224))
    target = picture.with_name("small.jpg")
    small.save(target, "JPEG", quality=60)
    advice = advised(profiles, *LINK, "--picture", str(picture), "--quality", "60")
    assert advice.options[2].name == "cloud with JPEG 60"
    assert advice.options[2].bytes == pytest.approx(target.stat().st_size + 4_000)


@pytest.mark.slow
def test_a_simulated_device_encodes_slower_and_is_called_that(tmp_path: Path, picture: Path) -> None:
    edge = profile("edge", EDGE_S, SIZES)
    simulated = edge.model_copy(update={"machine": edge.machine.model_copy(update={"simulated": "times of one x 8"})})
    arguments = written(tmp_path, simulated, profile("cloud", CLOUD_S, SIZES))
    once = advised(arguments, *LINK, "--picture", str(picture))
    slower = advised(arguments, *LINK, "--picture", str(picture), "--stretch", "1000")
    assert slower.options[2].edge_s > 30 * once.options[2].edge_s
    assert any(note == "The edge side is simulated: times of one x 8." for note in once.notes)
    assert any("multiplied by 1000" in note for note in slower.notes)


def test_a_picture_size_that_is_no_square_must_be_said(tmp_path: Path, picture: Path) -> None:
    sizes = [40 * 32 * 3 * 4, 100, 100]
    arguments = written(tmp_path, profile("edge", {0: 0.0, 2: 0.1}, sizes), profile("cloud", {0: 0.01, 2: 0.0}, sizes))
    more = (*arguments, *LINK, "--picture", str(picture))
    assert "--picture-size gives its size" in refused(*more)
    assert "of 40 x 40 pixels" in refused(*more, "--picture-size", "40x40")
    assert len(advised(list(more), "--picture-size", "40x32").options) > 4


def test_at_a_terminal_it_is_a_table_and_sentences(profiles: list[str], picture: Path) -> None:
    result = run(*profiles, *LINK, "--picture", str(picture))
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert any(line.split()[:4] == ["edge", "only", "–", "90.0"] for line in lines)
    assert any(line.startswith("c5 (interpolated)") and line.rstrip().endswith("nowhere") for line in lines)
    assert any(line.startswith("Splitting does not pay") for line in lines)
    assert not any("…" in line for line in lines)


@pytest.mark.parametrize(
    ("suffix", "start"),
    [
        ("png", b"\x89PNG"),
        *(pytest.param(*one, marks=pytest.mark.exhaustive) for one in (("pdf", b"%PDF"), ("svg", b"<?xml"))),
    ],
)
def test_it_is_drawn(profiles: list[str], tmp_path: Path, suffix: str, start: bytes) -> None:
    target = tmp_path / f"out.{suffix}"
    assert run(*profiles, *LINK, "--plot", str(target)).stdout.rstrip().endswith(f"wrote {target}")
    assert target.read_bytes().startswith(start)
    if suffix == "svg":
        text = target.read_text()
        assert text.count("<!-- other measured cuts -->") == 1
        for drawn in ("edge only", "cloud with raw input", "c5, interpolated", "the best of all", "uplink, Mbit/s"):
            assert f"<!-- {drawn} -->" in text


def test_the_objective_decides(profiles: list[str]) -> None:
    slow = ("--uplink", "1Mbps", "--rtt", "10ms")
    assert planned(profiles, *slow).advice == advised(profiles, *slow, "--objective", "latency")
    saving = planned(profiles, *slow, "--objective", "energy", "--power", "busy=5W", "--power", "idle=10mW")
    assert set(saving.placement.values()) == {"cloud"}
    assert saving.total_s == pytest.approx(0.009 + 0.01 + 606_112 * 8 / 1e6)
    cheap = planned(profiles, *slow, "--objective", "cost", "--price", "gb=4.0", "--price", "second=0.001")
    assert set(cheap.placement.values()) == {"edge"}
    both = ("--objective", "weighted", "--weight", "energy=1", "--power", "busy=5W", "--power", "idle=10mW")
    assert planned(profiles, *slow, *both).placement == saving.placement
    assert planned(profiles, *slow, *both, "--weight", "latency=100").placement == cheap.placement


def test_an_uncertain_link_is_planned_for_by_its_inverse(profiles: list[str]) -> None:
    samples = ("--uplink", "10Mbps", "--uplink", "90Mbps", "--rtt", "10ms")
    assert advised(profiles, *samples).uplink_bps == pytest.approx(18e6)
    assert advised(profiles, *samples, "--sure", "90%").uplink_bps == pytest.approx(10e6)
    spread = advised(profiles, *LINK, "--spread", "5", "--sure", "90%")
    assert spread.uplink_bps == pytest.approx(10e6)
    assert advised(profiles, *LINK, "--spread", "5").uplink_bps < 50e6


def test_what_comes_back_has_a_link_of_its_own(profiles: list[str]) -> None:
    same, other = planned(profiles, *LINK), planned(profiles, *LINK, "--downlink", "1Mbps")
    assert same.advice is not None
    assert same.advice.downlink_bps is None
    assert other.baselines.cloud_only_s == pytest.approx(
        (same.baselines.cloud_only_s or 0) + 4_000 * 8 * (1 / 1e6 - 1 / 50e6)
    )
    assert other.envelope[-1].bytes == 602_112
    assert same.envelope[-1].bytes == 606_112


def refused(*arguments: str) -> str:
    result = run(*arguments)
    assert isinstance(result.exception, ConfigError), result.output
    return str(result.exception)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--uplink", "8", "--rtt", "1ms"), "--uplink: expected a bit rate such as"),
        (("--uplink", "0bps", "--rtt", "1ms"), "--uplink: expected more than 0"),
        (("--uplink", "8Mbps", "--rtt", "40"), "--rtt: expected a duration"),
        ((*LINK, "--downlink", "0Mbps"), "--downlink: expected more than 0"),
        (
            (*LINK, "--spread", "0.5"),
            "--spread: expected a median of more than 0 bits per second and a spread from 1 to 1000",
        ),
        ((*LINK, "--uplink", "9Mbps", "--spread", "2"), "--spread: give either several"),
        ((*LINK, "--sure", "100%"), "--sure: expected a probability between 0 and 1"),
        ((*LINK, "--objective", "speed"), "--objective: expected one of latency, energy, cost, weighted"),
        ((*LINK, "--objective", "energy"), "--power: energy needs"),
        ((*LINK, "--objective", "energy", "--power", "busy=5"), "--power busy: expected a power such as 5W"),
        ((*LINK, "--objective", "energy", "--power", "hot=5W"), "--power: expected each of busy, idle"),
        ((*LINK, "--objective", "cost"), "--price: cost needs"),
        ((*LINK, "--objective", "cost", "--price", "gb=-1"), "--price gb: expected a number"),
        ((*LINK, "--objective", "weighted"), "--weight: weighted needs"),
        ((*LINK, "--objective", "weighted", "--weight", "energy=1"), "--power: energy needs"),
        ((*LINK, "--power", "busy=5W"), "--power: applies only to --objective energy or weighted"),
        ((*LINK, "--quality", "90"), "--quality: applies only with --picture"),
        ((*LINK, "--stretch", "8"), "--stretch: applies only to encoding a --picture"),
        ((*LINK, "--plot", "out.gif"), "--plot: expected a file that ends in .png, .svg, .pdf"),
        ((*LINK, "--graph", "g.json"), "--edge: applies only to profiles"),
        (("--uplink", "8Mbps"), "expected --graph FILE, or --edge FILE"),
    ],
)
def test_wrong_use_is_one_clear_sentence(profiles: list[str], more: tuple[str, ...], said: str) -> None:
    assert said in refused(*profiles, *more)


@pytest.mark.parametrize("content", [b"no picture", b"\xff\xd8\xff\xe0 broken"])
def test_what_is_no_picture_is_refused(profiles: list[str], tmp_path: Path, content: bytes) -> None:
    (tmp_path / "p.jpg").write_bytes(content)
    assert "p.jpg" in refused(*profiles, *LINK, "--picture", str(tmp_path / "p.jpg"))


def test_a_plot_that_cannot_be_written_is_refused(profiles: list[str], tmp_path: Path) -> None:
    assert "cannot be written" in refused(*profiles, *LINK, "--plot", str(tmp_path / "none" / "out.png"))


def test_profiles_of_a_real_model_meet(tmp_path: Path, picture: Path) -> None:
    """Heads measured in the agent's runtime and tails in the service's engine; which of them wins is not judged."""
    model = tmp_path / "digits.onnx"
    model.write_bytes(build_residual_digits(dynamic_batch=True).SerializeToString())
    arguments: list[str] = []
    for tier in ("edge", "cloud"):
        target = str(tmp_path / f"{tier}.json")
        taken: Any = CliRunner().invoke(
            app, ["profile", str(model), "--tier", tier, "--out", target, "--runs", "3", "--budget", "1s"]
        )
        assert taken.exception is None, taken.exception
        arguments += [f"--{tier}", target]
    found = planned(arguments, *LINK, "--picture", str(picture))
    edge = load_profile(tmp_path / "edge.json")
    assert list(found.placement) == [node.name for node in edge.nodes]
    assert found.baselines.edge_only_s == pytest.approx(edge.points[-1].corrected_s)
    least = min(piece.base_s + piece.bytes * 8 / 50e6 for piece in found.envelope)
    assert found.total_s == pytest.approx(least, rel=1e-6)
    assert found.advice is not None
    assert len(found.advice.options) >= 6
