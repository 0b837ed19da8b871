"""A share that is asked for is kept where no calibration fits the models that run now."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.edge.agents import policy
from upwell.shared.routing.decide.decisions import threshold_of
from upwell.shared.routing.decide.router import Router
from upwell.shared.routing.decide.router_state import RouterState, Scored
from upwell.shared.routing.hardness import is_hard
from upwell.shared.routing.policy.policy import Policy
from upwell.shared.routing.policy.settings import HardSettings, ModelPair
from upwell.shared.tensors import Array

TEXT = """
defaults: {hard: {measure: margin, below: 0.75, cloud_share: 20%}}
calibrations:
  - {model: m, measure: margin, below: 0.1, cloud_share: 20%, temperature: 1.5, edge_digest: E1, cloud_digest: C1}
"""
OLD = ModelPair("E1", "onnx cpu", "C1")
NEW_CLOUD = ModelPair("E1", "onnx cpu", "C2")
NEW_EDGE = ModelPair("E2", "onnx cpu", "C1")


def hard_of(router: Router) -> HardSettings:
    hard = router.settings("m").hard
    assert hard is not None
    return hard


def served(router: Router, state: RouterState, scores: Array) -> tuple[RouterState, Array]:
    """The state after these rows, one by one, and which of them were hard."""
    hard, up = hard_of(router), []
    for score in scores.tolist():
        up.append(is_hard(score, "margin", threshold_of(state, hard)))
        state = router.observe(state, Scored("m", hard.scope, 1, 0, (score,)), 0.0)
    return state, np.array(up)


def margins(seed: int, rows: int, lowest: float = 0.0) -> Array:
    """Margins of which a fifth is below a tenth of their range."""
    drawn = np.random.default_rng(seed).random(rows)
    return np.asarray(lowest + (1 - lowest) * np.where(drawn < 0.2, drawn / 2, 0.1 + (drawn - 0.2) * 1.125))


def test_under_another_model_in_the_cloud_the_same_rows_go_up_as_before() -> None:
    before, after = Router(policy(TEXT), {"m": OLD}), Router(policy(TEXT), {"m": NEW_CLOUD})
    assert (hard_of(before).calibrated, hard_of(after).calibrated) == (True, False)
    state, _ = served(before, RouterState(), margins(1, 400))
    rows = margins(2, 300)
    assert (served(after, state, rows)[1] == served(before, state, rows)[1]).all()


def test_the_first_rows_after_a_start_go_up_by_the_former_threshold_too() -> None:
    """What was seen is gone with the process; before, 0.75 sent most of them."""
    hard = hard_of(Router(policy(TEXT), {"m": NEW_CLOUD}))
    assert (hard.threshold, hard.temperature, hard.calibrated) == (0.1, 1.5, False)


@pytest.mark.parametrize("lowest", [0.0, 0.5, 0.9], ids=["alike", "surer", "much surer"])
def test_over_a_new_version_on_the_device_the_share_holds(lowest: float) -> None:
    """Its scores lie elsewhere: none of them is below the threshold of the version before, in two of three cases."""
    before, after = Router(policy(TEXT), {"m": OLD}), Router(policy(TEXT), {"m": NEW_EDGE})
    state, _ = served(before, RouterState(), margins(1, 400))
    state = after.of_another_model(state, "m", scores_alike=False)
    up = served(after, state, margins(2, 400, lowest))[1]
    assert abs(up.mean() - 0.2) <= 0.03
    assert abs(up[50:150].mean() - 0.2) <= 0.08


def test_what_was_sent_too_much_is_paid_back_by_the_next_version() -> None:
    router = Router(policy(TEXT), {"m": OLD})
    state = router.observe(RouterState(), Scored("m", hard_of(router).scope, 40, 40, ()), 0.0)
    (before,) = state.shares.values()
    (after,) = router.of_another_model(state, "m", scores_alike=False).shares.values()
    assert before.alpha == after.alpha < 0.2
    assert after.recent == ()


def test_scores_of_the_same_model_elsewhere_are_kept() -> None:
    router = Router(policy(TEXT), {"m": OLD})
    state, _ = served(router, RouterState(), margins(1, 50))
    assert router.of_another_model(state, "m", scores_alike=True).shares == state.shares


@pytest.mark.parametrize(
    ("model_pair", "threshold"),
    [(ModelPair("E3"), 0.4), (ModelPair("E2", "onnx cpu", "C9"), 0.3), (ModelPair("E2", "onnx qnn", "C9"), 0.2)],
    ids=["of an unknown model the last", "of the same model the last on its runtime", "another of its runtimes"],
)
def test_the_nearest_calibration_stands_in(model_pair: ModelPair, threshold: float) -> None:
    common = "model: m, measure: margin, cloud_share: 20%"
    of = policy(
        f"""
defaults: {{hard: {{cloud_share: 20%}}}}
calibrations:
  - {{{common}, below: 0.1, edge_digest: E2, edge_runtime: onnx cpu, cloud_digest: C1}}
  - {{{common}, below: 0.3, edge_digest: E2, edge_runtime: onnx cpu, cloud_digest: C2}}
  - {{{common}, below: 0.2, edge_digest: E2, edge_runtime: onnx qnn, cloud_digest: C2}}
  - {{{common}, below: 0.4, edge_digest: E1, edge_runtime: onnx cpu, cloud_digest: C1}}
"""
    )
    hard = of.settings("m", None, model_pair).hard
    assert hard is not None
    assert (hard.threshold, hard.calibrated) == (threshold, False)


@pytest.mark.parametrize(
    ("text", "model_pair", "says"),
    [
        (TEXT, OLD, ()),
        (
            TEXT,
            NEW_CLOUD,
            (
                "no calibration fits: the one for cloud_share 20% is for cloud_digest C1, not C2; that share is kept "
                "until `upwell policy calibrate` finds one for these models",
            ),
        ),
        (
            TEXT.replace("cloud_share: 20%", "max_risk: 2%"),
            NEW_EDGE,
            (
                "no calibration fits: the one for max_risk 2% is for edge_digest E1, not E2; threshold 0.75 holds "
                "until `upwell policy calibrate` finds one for these models",
            ),
        ),
        (
            "defaults: {hard: {cloud_share: 7%}}",
            OLD,
            (
                "no calibration for cloud_share 7%: it starts from 0.75 until `upwell policy calibrate` finds "
                "one for these models",
            ),
        ),
        ("defaults: {hard: {below: 0.3}}", OLD, ()),
    ],
    ids=["it fits", "another cloud", "a risk", "none at all", "no target"],
)
def test_why_none_fits_is_said_in_a_sentence(text: str, model_pair: ModelPair, says: tuple[str, ...]) -> None:
    assert Router(policy(text), {"m": model_pair}).misfits("m") == says


def test_a_risk_is_no_share_and_goes_back_to_the_plain_threshold() -> None:
    hard = policy(TEXT.replace("cloud_share: 20%", "max_risk: 2%")).settings("m", None, NEW_CLOUD).hard
    assert hard is not None
    assert (hard.threshold, hard.temperature, hard.calibrated) == (0.75, 1.0, False)


def test_without_a_calibration_at_all_the_written_threshold_starts() -> None:
    hard = Policy.model_validate({"defaults": {"hard": {"below": 0.3, "cloud_share": 0.2}}}).settings("m", None).hard
    assert hard is not None
    assert (hard.threshold, hard.calibrated) == (0.3, False)
