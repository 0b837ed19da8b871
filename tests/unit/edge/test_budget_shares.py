"""What a device keeps of the shares it was told, and for how long."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from upwell.edge.fleet.device_facts import AgentView, DemandRates, DemandView
from upwell.edge.fleet.fleet_protocol import FILE_NAME, KeptShares
from upwell.edge.observe.agent_metrics import ModelTotals
from upwell.shared.opamp import ModelDemand, read_demand

DAY_S = 86400.0


def kept(folder: Path, said: list[Mapping[str, float]]) -> KeptShares:
    return KeptShares(folder, DAY_S, said.append)


def test_the_last_share_holds_over_a_restart_and_then_for_a_day(tmp_path: Path) -> None:
    said: list[Mapping[str, float]] = []
    first = kept(tmp_path, said)
    first.take({"digits": 0.1}, 1e6)
    first.take({"digits": 0.1}, 1e6 + 1)
    assert said == [{"digits": 0.1}]
    again = kept(tmp_path, said)
    again.load(1e6 + DAY_S - 1)
    assert said[1:] == [{"digits": 0.1}]
    again.check(1e6 + DAY_S + 1)
    assert said[2:] == [{}]
    again.check(1e6 + 2 * DAY_S)
    assert said[3:] == []


def test_each_answer_of_the_service_makes_it_hold_anew(tmp_path: Path) -> None:
    said: list[Mapping[str, float]] = []
    shares = kept(tmp_path, said)
    shares.take({"digits": 0.1}, 1e6)
    for hours in range(48):
        shares.heard(1e6 + 3600 * hours)
        shares.check(1e6 + 3600 * hours + 3599)
    assert said == [{"digits": 0.1}]
    later = kept(tmp_path, said)
    later.load(1e6 + 3600 * 47 + DAY_S - 3600)
    assert said[1:] == [{"digits": 0.1}], "the file knows of it within minutes"


def test_a_clock_that_was_set_back_lets_it_hold_no_longer_than_from_then_on(tmp_path: Path) -> None:
    said: list[Mapping[str, float]] = []
    kept(tmp_path, said).take({"digits": 0.1}, 2e9)
    shares = kept(tmp_path, said)
    shares.load(1e9)
    shares.check(1e9 + DAY_S - 1)
    assert said[1:] == [{"digits": 0.1}]
    shares.check(1e9 + DAY_S + 1)
    assert said[-1] == {}


def test_shares_that_expired_apply_again_once_the_service_answers(tmp_path: Path) -> None:
    said: list[Mapping[str, float]] = []
    shares = kept(tmp_path, said)
    shares.take({"digits": 0.1}, 1e6)
    shares.check(1e6 + 50 * 365 * DAY_S)  # silence, or a clock that was set
    shares.heard(1e6 + 50 * 365 * DAY_S + 1)
    shares.check(1e6 + 50 * 365 * DAY_S + 2)
    assert said == [{"digits": 0.1}, {}, {"digits": 0.1}]
    again = kept(tmp_path, said)
    again.load(1e6 + 50 * 365 * DAY_S + 3)
    assert said[3:] == [{"digits": 0.1}]


@pytest.mark.parametrize("text", ["torn", "[]", '{"heard_unix_s": 1, "shares": {"m": 7}}', '{"shares": {}}'])
def test_a_damaged_file_is_no_share(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    said: list[Mapping[str, float]] = []
    kept(tmp_path, said).load(1.0)
    assert said == []


def test_demand_is_told_as_rates_since_it_was_last_heard() -> None:
    totals = {"digits": ModelTotals(0, 0, 0, 0)}
    view = AgentView(
        "a", {}, dict, dict, dict, dict, lambda _: [], dict,
        DemandView(lambda: dict(totals), lambda _: [(0.0, 0.2), (1.0, 0.0)], lambda: {"digits": 0.3}, lambda _: None),
    )  # fmt: skip
    rates = DemandRates()
    found, is_said = rates.rates(view, 100.0)
    assert found == {}
    is_said()
    totals["digits"] = ModelTotals(requests=80, up=10, wanted=40, sent_bytes=5000)
    found, _ = rates.rates(view, 120.0)
    found, is_said = rates.rates(view, 140.0)
    assert read_demand(found["digits"]) == ModelDemand(
        requests_per_s=2.0, request_bytes=500.0, wanted=0.5, share=0.3, shares=(0.0, 1.0), risks=(0.2, 0.0)
    )
    is_said()
    totals["digits"] = ModelTotals(requests=90, up=10, wanted=41, sent_bytes=5000)
    few = read_demand(rates.rates(view, 150.0)[0]["digits"])
    assert few is not None
    assert (few.requests_per_s, few.wanted, few.request_bytes) == (1.0, 1.0, 500.0)
