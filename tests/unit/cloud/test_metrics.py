"""What is counted, how that of several processes adds up, and that it stays bounded."""

from __future__ import annotations

import json
import re
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from upwell.cloud.observe.metrics import (
    FAMILIES,
    MAX_CLIENTS,
    OTHERS,
    SECONDS,
    CloudCollector,
    Histogram,
    ModelCounts,
    Reporter,
    RequestCounters,
    RequestEnd,
    Snapshot,
    WorkerMetrics,
    from_wire,
    merged,
    to_wire,
)
from upwell.shared.oip.model_statistics import MAX_SIZES, StatisticsCounter

UNITS = {"answers", "seconds", "bytes", "rows", "requests", "ready", "workers", "traces", "restarts", "deaths"}


def tally() -> RequestCounters:
    return RequestCounters(
        lambda: [ModelCounts("m", "1", True, 3, 0.5), ModelCounts("b", "2", False, 0, None)], lambda: {"sent": 4}
    )


def samples(*snapshots: Snapshot) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(CloudCollector(lambda: snapshots))
    return {
        f"{one.name}{json.dumps(dict(sorted(one.labels.items())))}" if one.labels else one.name: one.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for one in family.samples
    }


def label(name: str, **labels: str) -> str:
    return f"{name}{json.dumps(dict(sorted(labels.items())))}"


def test_each_name_says_its_unit_and_each_text_is_a_sentence() -> None:
    for name, family in FAMILIES.items():
        assert re.fullmatch(r"upwell_cloud(_[a-z]+)+", name)
        assert name.rpartition("_")[2] in UNITS, name
        assert family.text.endswith("."), name
        assert bool(family.bounds) == (family.kind == "histogram")


def test_what_was_counted_is_shown() -> None:
    one = tally()
    one.ended("dock", RequestEnd("m", "1", "OK", 0.0031, 100, 10, 0.0004))
    one.ended("dock", RequestEnd("m", "1", "OK", 0.2, 100, 10, 0.1))
    one.ended("gate", RequestEnd("m", "1", "RESOURCE_EXHAUSTED", 0.1, 7))
    one.ended("gate", RequestEnd("", "", "NOT_FOUND", 0.1, 0))
    one.ran("m", "1", 3, 0.3, [("dock", 1), ("gate", 2)])
    found = samples(one.snapshot())
    total = "upwell_cloud_requests_total"
    assert found[label(total, model="m", version="1", status="OK")] == 2
    assert found[label(total, model="m", version="1", status="RESOURCE_EXHAUSTED")] == 1
    assert found[label(total, model="", version="", status="NOT_FOUND")] == 1
    assert found[label("upwell_cloud_request_seconds_bucket", model="m", version="1", le="0.005")] == 1
    assert found[label("upwell_cloud_request_seconds_count", model="m", version="1")] == 2
    assert found[label("upwell_cloud_queue_seconds_sum", model="m", version="1")] == pytest.approx(0.1004)
    assert found[label("upwell_cloud_batch_rows_bucket", model="m", version="1", le="2.0")] == 0
    assert found[label("upwell_cloud_batch_rows_bucket", model="m", version="1", le="4.0")] == 1
    assert found[label("upwell_cloud_compute_seconds_sum", model="m", version="1")] == 0.3
    assert found[label("upwell_cloud_client_bytes_total", client="dock", direction="in")] == 200
    assert found[label("upwell_cloud_client_bytes_total", client="gate", direction="in")] == 7
    assert found[label("upwell_cloud_client_device_seconds_total", client="gate")] == pytest.approx(0.2)
    assert found[label("upwell_cloud_model_ready", model="b", version="2")] == 0
    assert found[label("upwell_cloud_waiting_requests", model="m", version="1")] == 3
    assert label("upwell_cloud_waiting_requests", model="b", version="2") not in found
    assert found[label("upwell_cloud_traces_total", became="sent")] == 4
    assert found["upwell_cloud_workers"] == 1
    assert found["upwell_cloud_resident_memory_bytes"] > 1 << 20


def test_strangers_make_no_new_series_without_end() -> None:
    one = tally()
    for number in range(MAX_CLIENTS + 50):
        one.ended(f"client {number}", RequestEnd("", "", "NOT_FOUND", 0.1, 1))
    table = one.snapshot()["upwell_cloud_client_bytes"]
    assert len({client for client, _ in table}) == MAX_CLIENTS + 1
    assert table[OTHERS, "in"] == [50]


def test_what_workers_count_adds_up_and_outlives_them() -> None:
    together, one, other = WorkerMetrics(), tally(), tally()
    for each in (one, other):
        each.ended("dock", RequestEnd("m", "1", "OK", 0.01, 100, 10, 0.0))
    together.update(1, json.loads(json.dumps(to_wire(one.snapshot()))))
    together.update(2, to_wire(other.snapshot()))
    one.ended("dock", RequestEnd("m", "1", "OK", 0.01, 100, 10, 0.0))
    together.update(1, to_wire(one.snapshot()))  # in place of what it told before
    total = label("upwell_cloud_requests_total", model="m", version="1", status="OK")
    found = samples(*together.read())
    assert (found[total], found["upwell_cloud_workers"]) == (3, 2)
    assert found[label("upwell_cloud_model_ready", model="m", version="1")] == 1
    assert found[label("upwell_cloud_model_load_seconds", model="m", version="1")] == 0.5
    together.ended(1)
    together.ended(7)  # which told nothing
    found = samples(*together.read())
    assert (found[total], found["upwell_cloud_workers"]) == (3, 1)
    together.update(1, to_wire(tally().snapshot()))  # the next one of that number begins at nothing
    together.ended(2)
    found = samples(*together.read())
    assert (found[total], found["upwell_cloud_workers"]) == (3, 1)
    together.ended(1)
    for _ in range(2):
        together.died("m", "1")
    found = samples(*together.read())
    assert (found[total], found["upwell_cloud_workers"]) == (3, 0)
    deaths = "upwell_cloud_worker_deaths_total"
    assert found[label(deaths, model="m", version="1")] == 2
    assert found[label(deaths, model="", version="")] == 0


def test_a_reporter_tells_at_once_in_between_and_at_the_end() -> None:
    told: list[object] = []
    third = threading.Event()

    def tell(tables: object) -> None:
        told.append(tables)
        if len(told) == 3:
            third.set()

    reporter = Reporter(lambda: {"upwell_cloud_workers": {(): [float(len(told))]}}, tell, every_s=0.01)
    assert third.wait(10)
    reporter.close()
    assert told[0] == {"upwell_cloud_workers": [[0.0]]}
    count = len(told)
    reporter.close()
    assert len(told) == count


values = st.floats(0, 100, allow_subnormal=False)


@given(st.lists(values), st.lists(values))
def test_merged_histograms_are_those_of_all_values(one: list[float], other: list[float]) -> None:
    def histogram(of: list[float]) -> list[float]:
        made = Histogram(SECONDS)
        for value in of:
            made.add(value)
        return made.values

    name, key = "upwell_cloud_queue_seconds", ("m", "1")
    whole = merged([{name: {key: histogram(one)}}, {}, from_wire(to_wire({name: {key: histogram(other)}}))])
    found = whole[name][key]
    assert found[:-1] == histogram([*one, *other])[:-1]
    assert found[-1] == pytest.approx(sum([*one, *other]))
    for bound in SECONDS:
        place = SECONDS.index(bound)
        assert sum(found[: place + 1]) == sum(value <= bound for value in [*one, *other])


def test_statistics_by_number_of_rows_stay_bounded_whatever_callers_send() -> None:
    counter = StatisticsCounter()
    for rows in (*range(1, 2 * MAX_SIZES), 1):
        counter.ran("m", "1", rows, 0.5, 1.0)
    (found,) = counter.read([("m", "1")])
    assert (found.runs, len(found.batches)) == (2 * MAX_SIZES, MAX_SIZES)
    assert (found.batches[1].runs, found.batches[1].compute_s) == (2, 1.0)
