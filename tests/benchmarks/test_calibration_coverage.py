"""Whether calibrations keep what they promise, over many logs whose truth is known. Prints what it found.

The truth of a generated log is a formula. The truth of the digits is a pool of the demo's held-out pictures, each many
times with a noise of its own: logs are drawn from the pool, so what a threshold does to the pool is its true risk.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pytest
from PIL import Image

from upwell.shared.routing.calibration.pair_calibration import Target, calibration_of
from upwell.shared.routing.calibration.threshold_choice import CannotCalibrate
from upwell.shared.routing.estimators.offload_share import ShareController
from upwell.shared.routing.hardness import RISING, Measure, hardness
from upwell.shared.routing.policy.compiled_policy import CompiledPolicy
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.policy.settings import HardSettings, ModelPair
from upwell.shared.routing.request_log_line import LogLine
from upwell.shared.tensors import Array
from upwell.tools.demo.digit_data import ASSETS, heldout

LOGS = 200
ALLOWED = 16
RISK = Target(max_risk=0.02)
SHARE = 0.2
MEASURES: tuple[Measure, ...] = ("margin", "max_prob", "entropy")
COPIES = 60

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@dataclass(frozen=True)
class Pool:
    """Cases of which everything is known: `logits` [n, 10], and whether each side is right, bool [n]."""

    logits: Array
    edge_right: Array
    cloud_right: Array

    def log(self, count: int, seed: int) -> list[LogLine]:
        """A log of independent draws."""
        drawn = np.random.default_rng(seed).integers(len(self.logits), size=count)
        return [
            LogLine(
                t_s=index / 5,
                model="digits",
                size_bytes=1000,
                logits=tuple(self.logits[case].tolist()),
                edge_correct=bool(self.edge_right[case]),
                cloud_correct=bool(self.cloud_right[case]),
            )
            for index, case in enumerate(drawn.tolist())
        ]

    def hard(self, measure: Measure, temperature: float, threshold: float) -> Array:
        """Which cases are hard."""
        values = np.array(hardness(self.logits, measure, logits=True, temperature=temperature))
        return values > threshold if measure in RISING else values < threshold


@lru_cache(maxsize=2)
def digits(noise_levels: float) -> Pool:
    """The demo's int8 model and its large one on the held-out digits, with noise of so many grey levels of 255."""
    onnxruntime = pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(11)
    held = heldout()
    images = np.tile(held.images, (COPIES, 1, 1)).astype(np.float64)
    labels = np.tile(held.labels, COPIES)
    pictures = np.rint(images + rng.normal(0, noise_levels, images.shape)).clip(0, 255).astype(np.uint8)
    edge = onnxruntime.InferenceSession(ASSETS / "edge/digits/model.onnx")
    cloud = onnxruntime.InferenceSession(ASSETS / "cloud/digits-large/1/model.onnx")
    logits = edge.run(None, {edge.get_inputs()[0].name: scaled(pictures)[:, None]})[0].astype(np.float64)
    large = np.stack([np.asarray(Image.fromarray(one).resize((32, 32), Image.Resampling.BILINEAR)) for one in pictures])
    name = cloud.get_inputs()[0].name
    answers = np.concatenate(
        [cloud.run(None, {name: scaled(part)[..., None]})[0].argmax(1) for part in np.array_split(large, 60)]
    )
    return Pool(logits, logits.argmax(1) == labels, answers == labels)


def scaled(pictures: Array) -> Array:
    """Grey levels as both models take them."""
    result: Array = pictures.astype(np.float32) / 255
    return result


def compiled(target: Target, measure: Measure = "margin") -> tuple[CompiledPolicy, HardSettings]:
    named = {"cloud_share": target.cloud_share} if target.is_share else {"max_risk": target.max_risk}
    policy = Policy.model_validate({"defaults": {"hard": {"measure": measure, **named}}})
    hard = policy.settings("digits", None).hard
    assert hard is not None
    return CompiledPolicy(policy), hard


def report(capsys: pytest.CaptureFixture[str], text: str) -> None:
    with capsys.disabled():
        print(f"\n{text}")


@pytest.mark.parametrize("count", [500, 2000])
def test_the_true_risk_of_generated_logs(count: int, capsys: pytest.CaptureFixture[str]) -> None:
    """With margin x uniform the device is wrong with 0.4(1 − x)² and the cloud then right with 0.97: the true risk of a
    threshold c is 0.97 · 0.4 ∫_c^1 (1 − x)² dx = 0.97 · 0.4 (1 − c)³ / 3."""
    policy, hard = compiled(RISK)
    exceeded, shares = 0, []
    for seed in range(LOGS):
        rng = np.random.default_rng(seed)
        margins, edge, cloud = rng.random(count), rng.random(count), rng.random(count)
        lines = [
            LogLine(t_s=i / 5, model="digits", size_bytes=9, hardness={"margin": x}, edge_correct=e, cloud_correct=c)
            for i, (x, e, c) in enumerate(
                zip(margins.tolist(), (edge >= 0.4 * (1 - margins) ** 2).tolist(), (cloud < 0.97).tolist(), strict=True)
            )
        ]
        one = calibration_of(lines, policy, hard, ModelPair(), RISK)
        exceeded += 0.97 * 0.4 * (1 - one.threshold) ** 3 / 3 > RISK.max_risk
        shares.append(one.threshold)
    least = 1 - (RISK.max_risk * 3 / 0.97 / 0.4) ** (1 / 3)
    report(
        capsys,
        f"generated, {count} lines: true risk above 2 % in {exceeded} of {LOGS}; {np.mean(shares):.1%} go up on "
        f"average, {least:.1%} would do",
    )
    assert exceeded <= ALLOWED


@pytest.mark.parametrize("noise_levels", [20.0, 45.0], ids=["digits", "noisy digits"])
def test_the_true_risk_of_the_digits(noise_levels: float, capsys: pytest.CaptureFixture[str]) -> None:
    pool = digits(noise_levels)
    policy, hard = compiled(RISK)
    loss = pool.cloud_right & ~pool.edge_right
    exceeded, refused, risks, shares = 0, 0, [], []
    for seed in range(LOGS):
        try:
            one = calibration_of(pool.log(1500, seed), policy, hard, ModelPair(), RISK)
        except CannotCalibrate:
            refused += 1
            continue
        kept = ~pool.hard("margin", one.hard.temperature, one.threshold)
        risks.append(float((kept & loss).mean()))
        shares.append(1 - float(kept.mean()))
        exceeded += risks[-1] > RISK.max_risk
    report(
        capsys,
        f"digits with noise {noise_levels:g}: device right {pool.edge_right.mean():.1%}, cloud "
        f"{pool.cloud_right.mean():.1%}, risk of the device alone {loss.mean():.1%}; true risk above 2 % in {exceeded} "
        f"of {LOGS} ({refused} refused), on average {np.mean(risks):.2%} with {np.mean(shares):.1%} going up",
    )
    assert exceeded <= ALLOWED
    assert refused <= LOGS // 50


@pytest.mark.parametrize("noise_levels", [20.0, 45.0], ids=["digits", "noisy digits"])
@pytest.mark.parametrize("measure", MEASURES)
def test_the_share_on_cases_held_out(noise_levels: float, measure: Measure, capsys: pytest.CaptureFixture[str]) -> None:
    """The threshold as it stands on the whole pool, and the controller that starts from it on 1,000 fresh cases."""
    pool = digits(noise_levels)
    target = Target(cloud_share=SHARE)
    policy, hard = compiled(target, measure)
    plain, held = [], []
    for seed in range(20):
        one = calibration_of(pool.log(3000, seed), policy, hard, ModelPair(), target)
        plain.append(float(pool.hard(measure, one.hard.temperature, one.threshold).mean()) - SHARE)
        start = HardSettings(measure, one.threshold, one.hard.temperature, cloud_share=SHARE)
        fresh = [line.logits for line in pool.log(1000, seed + 10_000)]
        held.append(
            controlled(hardness(np.array(fresh), measure, logits=True, temperature=one.hard.temperature), start) - SHARE
        )
    report(
        capsys,
        f"digits with noise {noise_levels:g}, {measure}: share off by at most {max(map(abs, plain)):.1%} with the "
        f"threshold alone, {max(map(abs, held)):.1%} with the controller",
    )
    assert max(map(abs, held)) <= 0.02
    assert np.mean(np.abs(plain)) <= 0.02


def test_the_share_while_the_pictures_get_noisier(capsys: pytest.CaptureFixture[str]) -> None:
    """Calibrated on the digits; then the first half of a log is of those and the second of noisy ones, and back."""
    clean, noisy = digits(20.0), digits(45.0)
    target = Target(cloud_share=SHARE)
    for measure in MEASURES:
        policy, hard = compiled(target, measure)
        one = calibration_of(clean.log(3000, 0), policy, hard, ModelPair(), target)
        start = HardSettings(measure, one.threshold, one.hard.temperature, cloud_share=SHARE)
        worst = 0.0
        for seed in range(20):
            for first, second in ((clean, noisy), (noisy, clean)):
                lines = [*first.log(500, seed + 1), *second.log(500, seed + 500)]
                values = hardness(
                    np.array([line.logits for line in lines]), measure, logits=True, temperature=one.hard.temperature
                )
                worst = max(worst, abs(controlled(values, start, 500) - SHARE))
        report(capsys, f"drift, {measure}: share of the second half off by at most {worst:.1%}")
        assert worst <= 0.03


def controlled(values: tuple[float, ...], start: HardSettings, after: int = 0) -> float:
    """The share that goes up under the controller, of all rows but the first `after`."""
    controller, up = ShareController.start(start), []
    for value in values:
        threshold = controller.threshold
        up.append(value > threshold if start.measure in RISING else value < threshold)
        controller = controller.observe(1, 0, (value,))
    return float(np.mean(up[after:]))
