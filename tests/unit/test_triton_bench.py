"""What `make bench-triton` makes of h2load's words, and of the figures."""

import dataclasses
import os
import signal
from pathlib import Path

import grpc
import pytest

from tests.benchmarks.quiet import Quiet
from tests.benchmarks.triton_bench import h2load, report, rounds, servers
from tests.benchmarks.triton_bench.h2load import ConnectionBroke, LoadFailed, Sample
from tests.benchmarks.triton_bench.report import TRITON, Cell, Target
from tests.benchmarks.triton_bench.work import check, prepare

TOLD = """\
starting benchmark...
Application protocol: h2c

finished in 150.20ms, 665.78 req/s, 132.73KB/s
requests: 100 total, 100 started, 100 done, {succeeded} succeeded, {failed} failed, 0 errored, 0 timeout
status codes: 100 2xx, 0 3xx, 0 4xx, 0 5xx
traffic: 19.93KB (20413) total, 1.05KB (1079) headers (space savings 90.46%), 9.67KB ({data}) data
                     min         max         mean         sd        +/- sd
time for request:      579us      9.46ms      1.48ms      1.24ms    97.00%
"""


def test_a_run_in_which_every_call_was_answered_is_accepted() -> None:
    h2load.check_counts(TOLD.format(succeeded=100, failed=0, data=19900), 100, 199)


def test_an_answer_without_a_body_is_an_error_although_h2load_counts_it() -> None:
    with pytest.raises(LoadFailed, match=r"about 1\.0 of 100 answers"):
        h2load.check_counts(TOLD.format(succeeded=100, failed=0, data=19701), 100, 199)


def test_a_call_that_failed_and_words_that_are_not_understood_are_errors() -> None:
    with pytest.raises(ConnectionBroke, match="3 of 100 calls failed"):
        h2load.check_counts(TOLD.format(succeeded=97, failed=3, data=19900), 100, 199)
    with pytest.raises(LoadFailed, match="not understood"):
        h2load.check_counts("finished", 100, 199)


def test_a_body_is_length_prefixed_and_answers_are_counted_like_it() -> None:
    assert h2load.body_of(b"abc", 2) == b"\0\0\0\0\x03abc" * 2
    assert h2load.answer_size(3, 2) == len(h2load.body_of(b"abc", 2))


def test_only_the_time_with_every_connection_at_work_counts() -> None:
    """One connects 2 s late and makes its four calls of 1 s; the other makes eight of them alone at both ends."""
    calls = [(second, 1.0) for second in range(8)] + [(2 + second, 1.0) for second in range(4)]
    log = "\n".join(f"{round(1e6 * start)}\t200\t{round(1e6 * took)}" for start, took in calls)
    sample = h2load.read_log(log, 2)
    assert dataclasses.astuple(sample) == pytest.approx((2.0, 1.0, 1.0))


def test_calls_that_follow_on_each_other_are_one_after_the_other() -> None:
    log = "0\t200\t500000\n500000\t200\t1500000\n"
    assert h2load.read_log(log, 1).per_s == pytest.approx(1.0)
    with pytest.raises(LoadFailed, match="never were 2 calls"):
        h2load.read_log(log, 2)


@pytest.mark.parametrize("log", ["", "0\t-1\t5\n", "0\t200\n", "0\t503\t5\n"])
def test_a_log_with_a_call_that_has_no_success_is_refused(log: str) -> None:
    with pytest.raises(LoadFailed, match="log is empty or has calls without an answer"):
        h2load.read_log(log, 1)


SAMPLES = {
    Cell("digits", "one", TRITON): [Sample(1000, 0.001, 0.002), Sample(2000, 0.001, 0.004), Sample(500, 0.001, 0.001)],
    Cell("digits", "one", "ours"): [Sample(900, 0.001, 0.002), Sample(1600, 0.002, 0.002), Sample(500, 0.003, 0.003)],
}


def test_ratios_are_of_the_same_round() -> None:
    _, ours = report.rows(SAMPLES)
    assert ours.per_s == report.Spread(900, 500, 1600)
    assert dataclasses.astuple(ours.rate_ratio) == pytest.approx((0.9, 0.8, 1.0))
    assert dataclasses.astuple(ours.p99_ratio) == pytest.approx((1.0, 0.5, 3.0))
    assert ours.p50_ms == pytest.approx(2.0)


def test_a_target_is_missed_by_its_rate_by_its_p99_and_by_not_being_measured() -> None:
    rows = report.rows(SAMPLES)
    met = Target("digits", "one", ["ours", "another"], 0.9, 1.1)
    slow = Target("digits", "one", ["ours"], 0.95)
    late = Target("digits", "one", ["ours"], 0.5, 0.9)
    absent = Target("digits", "two", ["ours"], 0.5)
    slow_text, late_text, absent_text = report.misses(rows, [met, slow, late, absent])
    assert slow_text == "digits, one: rate at least 0.95 of Triton's; ours 0.90 and 1.00"
    assert "p99 at most 0.9" in late_text
    assert absent_text.endswith("not measured")


def test_the_table_goes_between_the_marks_and_nothing_else_changes(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{report.START}\nold\n{report.END}\nafter\n")
    report.write(page, report.table(report.rows(SAMPLES), {"digits": "Digits"}))
    text = page.read_text()
    assert text.startswith(f"before\n{report.START}\n\nDigits:\n")
    assert text.endswith(f"\n{report.END}\nafter\n")
    assert "old" not in text
    assert "| one | Triton | 1,000 (500–2,000) |  | 1 | 2 |  |\n" in text
    assert "|  | ours | 900 (500–1,600) | 0.90 (0.80–1.00) | 2 | 2 | 1.00 (0.50–3.00) |\n" in text
    page.write_text("no marks")
    with pytest.raises(ValueError, match="expected the marks"):
        report.write(page, "table")


def test_what_a_broken_connection_spoilt_is_measured_again_and_told() -> None:
    def take() -> Sample:
        taken.append(None)
        if len(taken) in breaks:
            raise ConnectionBroke("46 of 225 calls failed")
        return Sample(1.0, 1.0, 1.0)

    taken: list[None] = []
    one = rounds.Measurement(Cell("digits", "concurrency 1", "Triton"), take)
    breaks, broken = {2, 3}, list[str]()
    assert len(rounds.measure([one], 3, Quiet(0.0), lambda _: None, broken.append)[one.cell]) == 3
    assert (broken, len(taken)) == (["Triton", "Triton"], 5)
    breaks = {6, 7, 8}
    with pytest.raises(LoadFailed, match=r"^Triton, digits, concurrency 1: 46 of"):
        rounds.measure([one], 1, Quiet(0.0), lambda _: None, broken.append)


@pytest.mark.slow
def test_a_server_that_has_ended_by_itself_is_started_again(tmp_path: Path) -> None:
    works = [work for work in prepare(tmp_path / "models") if work.name == "digits"]
    launch = servers.plain(tmp_path / "plain", works)
    with servers.Server(launch, works) as server, grpc.insecure_channel(launch.target) as channel:
        first = server.pid
        server.revive()
        assert server.pid == first
        os.kill(first, signal.SIGKILL)
        server.revive()
        assert server.pid != first
        check(channel, works[0])
