"""Drift in virtual time: what moved is seen and named, and what did not move raises no alarm."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from upwell.shared.errors import ConfigError
from upwell.shared.routing.drift.drift_reference import (
    DistanceFrom,
    DriftReference,
    RowMeasures,
    VectorModel,
    reference_of,
)
from upwell.shared.routing.drift.model_drift import BASELINE_AUDITS, ModelDrift
from upwell.shared.routing.drift.quantity_test import FALSE_ALARMS


def row(
    rng: np.random.Generator, *, darker: float = 0.0, moved: float = 0.0, frozen: bool = False, of: int = 4
) -> RowMeasures:
    """A row of a made-up camera: `darker` pictures, or an embedding that has `moved`; classes 0 to `of` − 1."""
    return RowMeasures(
        hardness=float(rng.beta(5, 1)),
        label=str(rng.integers(of)),
        brightness=float(rng.normal(0.5 - darker, 0.1)),
        sharpness=float(rng.normal(5, 1)),
        is_frozen=frozen,
        vector=rng.normal(moved, 1, 6),
    )


def reference(rng: np.random.Generator, rows: int = 600, every_s: float = 0.0) -> DriftReference:
    return reference_of(
        [row(rng) for _ in range(rows)], edge_digest="sha256:x", measure="margin", every_s=every_s, seed=0
    )


def after(drift: ModelDrift, rng: np.random.Generator, **change: Any) -> int:
    """Rows with this change until something has moved."""
    for index in range(600):
        drift.add(row(rng, **change), 1000.0 + index)
        if drift.has_drifted:
            return index + 1
    return 600


@pytest.mark.parametrize(
    ("change", "finding", "quantity"),
    [
        ({"darker": 0.2}, "camera", "brightness"),
        ({"frozen": True}, "camera", "frozen"),
        ({"moved": 1.5}, "world", "embedding"),
        ({"of": 2}, "world", "classes"),
    ],
)
def test_what_moved_is_named_soon_with_its_beginning(change: dict[str, Any], finding: str, quantity: str) -> None:
    rng = np.random.default_rng(1)
    drift = ModelDrift(reference(rng))
    for index in range(300):
        drift.add(row(rng), float(index))
    assert not drift.has_drifted
    assert after(drift, rng, **change) <= 150
    for index in range(50):
        drift.add(row(rng, **change), 2000.0 + index)
    report = drift.report()
    assert report.findings == [finding]
    moved = report.quantities[quantity]  # type: ignore[index]  # one of them
    assert moved.moved
    assert moved.since is not None
    assert abs(moved.since - 300) <= 80
    assert moved.since_unix_s is not None
    assert moved.distance > 0.2
    assert "→" in moved.text


def test_a_dark_camera_hides_what_it_does_to_the_classes() -> None:
    rng = np.random.default_rng(2)
    drift = ModelDrift(reference(rng))
    for index in range(300):
        drift.add(row(rng, darker=0.3, moved=2.0, of=1), float(index))
    assert drift.report().findings == ["camera"]
    assert drift.report().quantities["classes"].moved


def test_an_alarm_ends_once_the_rows_are_as_before() -> None:
    rng = np.random.default_rng(3)
    drift = ModelDrift(reference(rng))
    after(drift, rng, darker=0.3)
    for index in range(400):
        drift.add(row(rng), 5000.0 + index)
    assert not drift.has_drifted


def test_audits_that_disagree_more_often_than_the_first_hundred_say_that_the_model_got_worse() -> None:
    rng = np.random.default_rng(4)
    drift = ModelDrift(reference(rng))
    for index in range(BASELINE_AUDITS + 100):
        drift.audited(bool(rng.random() < 0.05), float(index))
    assert not drift.has_drifted
    for index in range(100):
        drift.audited(bool(rng.random() < 0.5), 1000.0 + index)
    assert drift.report().findings == ["model"]
    fewer = ModelDrift(reference(rng))
    for index in range(400):
        fewer.audited(bool(rng.random() < (0.5 if index < BASELINE_AUDITS else 0.0)), float(index))
    assert not fewer.has_drifted  # a model that got better is no alarm


def test_rows_within_a_unit_count_as_one() -> None:
    """A video that shows the same for a second is no evidence of 25 rows."""
    rng = np.random.default_rng(5)
    drift = ModelDrift(reference(rng, every_s=1.0))
    for index in range(200):
        drift.add(row(rng, darker=0.3), index / 25)
    assert not drift.has_drifted  # 8 units
    for index in range(2500):
        drift.add(row(rng, darker=0.3), 8 + index / 25)
    assert drift.has_drifted


def test_a_restart_goes_on_where_it_stood() -> None:
    rng = np.random.default_rng(6)
    made = reference(rng)
    one, other = ModelDrift(made), ModelDrift(DriftReference.read(made.text()))
    for index in range(200):
        one.add(row(rng, darker=0.05), float(index))
        one.audited(index % 10 == 0, float(index))
    other.restore(json.loads(json.dumps(one.to_json())))
    assert other.to_json() == one.to_json()
    assert other.report() == one.report()
    with pytest.raises((ValueError, KeyError, TypeError)):
        ModelDrift(made).restore({"audits": [0, 0], "quantities": {"hardness": {"rows": 1, "windows": [], "test": {}}}})


def test_counts_stay_bounded() -> None:
    rng = np.random.default_rng(7)
    drift = ModelDrift(reference(rng))
    for index in range(6000):
        drift.add(RowMeasures(label=str(rng.integers(4))), float(index))
    size = len(json.dumps(drift.to_json()))
    for index in range(6000):
        drift.add(RowMeasures(label=str(rng.integers(4))), 6000.0 + index)
    assert len(json.dumps(drift.to_json())) < 1.2 * size < 200_000


def test_a_reference_needs_rows_and_says_what_is_wrong_with_one_that_is_broken() -> None:
    rng = np.random.default_rng(8)
    with pytest.raises(ConfigError, match="at least 150 rows"):
        reference(rng, rows=149)
    good = json.loads(reference(rng).text())
    good["quantities"]["hardness"]["counts"].pop()
    with pytest.raises(ValueError, match=r"quantities\.hardness"):
        DriftReference.read(json.dumps(good))


def test_the_distance_is_about_one_for_rows_like_the_reference_and_sees_a_broken_correlation() -> None:
    rng = np.random.default_rng(9)
    base = rng.normal(size=(2000, 1))
    vectors = np.hstack([base, base + 0.1 * rng.normal(size=(2000, 1))])
    distance = DistanceFrom(VectorModel.of(vectors))
    assert 0.5 < np.mean([distance(one) for one in vectors]) < 1.2
    assert distance(np.array([1.0, -1.0])) > 2.5  # each element alone is ordinary
    assert np.isnan(distance(np.zeros(3)))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_of_200_streams_that_do_not_drift_at_most_the_stated_share_raises_an_alarm() -> None:
    alarms = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        drift = ModelDrift(reference(rng, rows=400))
        for index in range(1000):
            drift.add(row(rng), float(index))
            if drift.has_drifted:
                alarms += 1
                break
    assert alarms <= 200 * FALSE_ALARMS
    print(f"{alarms} of 200 streams raised an alarm")
