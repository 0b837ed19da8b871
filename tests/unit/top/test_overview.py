"""From two readings of a metrics page to rates, shares and quantiles."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.in_process import InProcess
from upwell.tools.top_cli import Scrape, overview, quantile

EDGES = (0.001, 0.01, 0.1, math.inf)


def scrape(at_s: float, **samples: dict[tuple[tuple[str, str], ...], float]) -> Scrape:
    return Scrape(at_s, samples)


def labels(**own: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(own.items()))


def histogram(name: str, counts: tuple[float, ...], **own: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    total, table = 0.0, {}
    for edge, count in zip(EDGES, counts, strict=True):
        total += count
        table[labels(**own, le="+Inf" if math.isinf(edge) else str(edge))] = total
    return {f"{name}_bucket": table}


@given(st.lists(st.floats(0, 0.1), min_size=1, max_size=50), st.floats(0.01, 1))
def test_a_quantile_lies_in_the_bucket_of_the_value(values: list[float], share: float) -> None:
    buckets = [(edge, float(sum(value <= edge for value in values))) for edge in EDGES]
    found = quantile(buckets, share)
    true = sorted(values)[math.ceil(share * len(values) - 1e-9) - 1]
    low = max((edge for edge in (0.0, *EDGES) if edge < true), default=0.0)
    high = min(edge for edge in EDGES if edge >= true)
    assert low <= found <= high


def test_nothing_counted_is_not_known() -> None:
    assert math.isnan(quantile([], 0.5))
    assert math.isnan(quantile([(0.1, 0.0), (math.inf, 0.0)], 0.5))
    assert quantile([(0.1, 0.0), (math.inf, 3.0)], 0.5) == 0.1


def test_of_an_agent_shares_and_reasons_are_those_between_two_looks() -> None:
    def at(at_s: float, edge: float, up: float, late: float) -> Scrape:
        return scrape(
            at_s,
            upwell_model_state={labels(model="m", state="ready"): 1.0, labels(model="m", state="fallback"): 0.0},
            upwell_requests_total={
                labels(model="m", route="edge", reason="easy"): edge,
                labels(model="m", route="cloud", reason="hard"): up,
            },
            upwell_failed_total={labels(model="m", error="DeadlineExceeded"): late},
            upwell_link_rtt_seconds={(): 0.02},
            **histogram("upwell_request_seconds", (edge, up, 0, 0), model="m", route="edge"),
        )

    seen = overview(at(10, 1000, 500, 7), at(12, 1060, 520, 27))
    (line,) = seen.models
    assert (seen.kind, seen.interval_s, line.state) == ("agent", 2, "ready")
    assert (line.rate, line.failed_rate) == (40, 10)
    assert line.up_share == pytest.approx(0.25)
    assert seen.in_time == pytest.approx(0.8)
    assert seen.reasons == {"easy": 30, "hard": 10}
    assert seen.facts["link rtt"] == 0.02
    assert 0 < line.p50_s <= 0.001 < line.p99_s <= 0.01


def test_of_a_service_each_version_has_its_line() -> None:
    def at(at_s: float, answered: float) -> Scrape:
        of = {"model": "m", "version": "2"}
        return scrape(
            at_s,
            upwell_cloud_model_ready={labels(**of): 1.0, labels(model="m", version="1"): 0.0},
            upwell_cloud_requests_total={
                labels(**of, status="OK"): answered,
                labels(**of, status="DEADLINE_EXCEEDED"): answered / 4,
            },
            upwell_cloud_batch_rows_count={labels(**of): answered / 2},
            upwell_cloud_batch_rows_sum={labels(**of): 3 * answered},
            upwell_cloud_waiting_requests={labels(**of): 5.0},
        )

    seen = overview(at(0, 0), at(1, 80))
    broken, line = seen.models
    assert (broken.model, broken.state, broken.rate) == ("m/1", "not ready", 0)
    assert (line.model, line.rate, line.failed_rate, line.batch_rows, line.waiting) == ("m/2", 80, 20, 6, 5)
    assert seen.in_time == pytest.approx(0.8)


def test_a_counter_that_began_anew_counts_from_zero() -> None:
    name = {"model": "m", "route": "edge", "reason": "easy"}
    state = {labels(model="m", state="ready"): 1.0}
    before = scrape(0, upwell_requests_total={labels(**name): 900.0}, upwell_model_state=state)
    after = scrape(1, upwell_requests_total={labels(**name): 12.0}, upwell_model_state=state)
    assert overview(before, after).models[0].rate == 12


@pytest.mark.parametrize("every", ["0.1", "nan", "inf", "1e9"])
def test_an_interval_that_nobody_can_wait_for_is_refused(in_process: InProcess, every: str) -> None:
    done = in_process("top", "--at", "127.0.0.1:1", "--every", every)
    assert (done.code, "--every: expected from 0.2 to 3600 seconds" in done.err) == (2, True)
