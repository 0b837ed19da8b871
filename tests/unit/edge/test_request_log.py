"""`RequestLog`: every line or a count of it, on disks that take it and on disks that do not, within its bounds."""

from __future__ import annotations

import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.unit.edge.agents import MODEL, SURE, edge_model, policy, rows_of
from upwell.edge.models.edge_model import ServedModel
from upwell.edge.models.trial_and_rollback import Trial
from upwell.edge.observe import request_log
from upwell.edge.observe.outcome_recorder import LOG_NAME
from upwell.edge.observe.request_log import QUEUE_LINES, RequestLog, encode_line
from upwell.edge.runtimes.base import Placement, runtime_name
from upwell.edge.runtimes.fake import FakeRuntime
from upwell.edge.server.agent_core import AgentCore, AgentParts
from upwell.edge.server.state_dir import StateDir
from upwell.shared.files import open_log
from upwell.shared.routing.request_log_line import LONGEST_LINE_BYTES, LogLine

PLENTY = 1 << 20


def line(number: int) -> LogLine:
    return LogLine(t_s=1.5, model="digits", size_bytes=100, hardness={"margin": 0.5}, tags={"n": f"{number:06}"})


SIZE = len(encode_line(line(10)))


def read(path: Path) -> list[int]:
    """The numbers of the lines in the file, each of which must be whole."""
    data = path.read_bytes()
    assert data == b"" or data.endswith(b"\n")
    return [int(LogLine.model_validate_json(text).tags["n"]) for text in data.splitlines()]


def test_lines_are_written_in_order_and_flushed_on_close(tmp_path: Path) -> None:
    log = RequestLog(tmp_path / "log.jsonl")
    for number in range(300):
        log.append(line(number), PLENTY)
    log.close()
    log.close()
    assert read(tmp_path / "log.jsonl") == list(range(300))
    assert (log.written, log.dropped, log.failed) == (300, 0, 0)
    assert stat.S_IMODE((tmp_path / "log.jsonl").stat().st_mode) == 0o600


def test_what_nobody_knows_is_left_out_and_reads_back_the_same() -> None:
    assert b"cloud_s" not in encode_line(line(1))
    assert LogLine.model_validate_json(encode_line(line(1))) == line(1)


def test_lines_of_many_threads_are_all_there_once(tmp_path: Path) -> None:
    log = RequestLog(tmp_path / "log.jsonl")

    def write(first: int) -> None:
        for number in range(first, first + 50):
            log.append(line(number), PLENTY)

    threads = [threading.Thread(target=write, args=(50 * index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    assert sorted(read(tmp_path / "log.jsonl")) == list(range(400))


def test_a_log_is_gone_on_with_and_a_torn_line_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(encode_line(line(1)) + encode_line(line(2))[:-7])
    path.chmod(0o644)
    log = RequestLog(path)
    log.append(line(3), PLENTY)
    log.close()
    assert read(path) == [1, 3]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("torn", [b"", b"x", b"x" * 200_000])
@pytest.mark.parametrize("whole", [b"", b"{}\n", b"{}\n" * 50_000])
def test_a_torn_line_of_any_length_is_cut_off(tmp_path: Path, whole: bytes, torn: bytes) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(whole + torn)
    with open_log(path):
        pass
    assert path.read_bytes() == whole


@pytest.mark.parametrize("limit_lines", [2, 10, 11, 25])
def test_two_files_never_hold_more_than_the_limit_and_the_last_lines_are_there(
    tmp_path: Path, limit_lines: int
) -> None:
    path, former = tmp_path / "log.jsonl", tmp_path / "log.jsonl.1"
    limit_bytes = limit_lines * SIZE
    for start in (10, 110):  # the second time it goes on with what is there
        log = RequestLog(path)
        for number in range(start, start + 100):
            log.append(line(number), limit_bytes)
        log.close()
        assert log.written == 100
        sizes = [file.stat().st_size for file in tmp_path.iterdir()]
        assert sum(sizes) <= limit_bytes
        kept = (read(former) if former.exists() else []) + read(path)
        assert kept == list(range(start + 100 - len(kept), start + 100))
        assert len(kept) > limit_lines // 4
    assert {file.name for file in tmp_path.iterdir()} == {"log.jsonl", "log.jsonl.1"}
    assert stat.S_IMODE(former.stat().st_mode) == 0o600


def test_a_lower_limit_holds_for_files_that_are_there(tmp_path: Path) -> None:
    for name in ("log.jsonl", "log.jsonl.1"):
        (tmp_path / name).write_bytes(encode_line(line(10)) * 100)
    log = RequestLog(tmp_path / "log.jsonl")
    log.append(line(11), 10 * SIZE)
    log.close()
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 10 * SIZE
    assert read(tmp_path / "log.jsonl") == [11]


def test_a_line_that_is_too_long_is_counted_and_the_others_stay(tmp_path: Path) -> None:
    log = RequestLog(tmp_path / "log.jsonl")
    log.append(line(10), 10 * SIZE)
    log.append(line(11).model_copy(update={"tags": {"n": "x" * 20 * SIZE}}), 10 * SIZE)
    log.append(line(12), 10 * SIZE)
    log.close()
    assert read(tmp_path / "log.jsonl") == [10, 12]
    assert (log.written, log.failed) == (2, 1)


def test_a_full_queue_drops_and_counts_and_makes_nobody_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk stands still while the writer opens the file; what the queue cannot hold is dropped."""
    reached, go = threading.Event(), threading.Event()
    real = open_log

    @contextmanager
    def slow(path: Path) -> Iterator[int]:
        reached.set()
        go.wait()
        with real(path) as file:
            yield file

    monkeypatch.setattr(request_log, "open_log", slow)
    log = RequestLog(tmp_path / "log.jsonl")
    log.append(line(0), PLENTY)
    reached.wait()
    for number in range(1, QUEUE_LINES + 11):
        log.append(line(number), PLENTY)
    assert log.dropped == 10
    go.set()
    log.close()
    assert read(tmp_path / "log.jsonl") == list(range(QUEUE_LINES + 1))


def test_a_closed_log_drops_and_counts(tmp_path: Path) -> None:
    log = RequestLog(tmp_path / "log.jsonl")
    log.close()
    log.append(line(1), PLENTY)
    assert (log.written, log.dropped) == (0, 1)
    assert not (tmp_path / "log.jsonl").exists()


def test_a_path_that_cannot_be_written_is_counted_and_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "log.jsonl").mkdir()
    log = RequestLog(tmp_path / "log.jsonl")
    log.append(line(1), PLENTY)
    log.close()
    gone = RequestLog(tmp_path / "no" / "log.jsonl")
    gone.append(line(1), PLENTY)
    gone.append(line(2), PLENTY)
    gone.close()
    assert (log.failed, gone.failed, log.written, gone.written) == (1, 2, 0, 0)
    assert len(caplog.records) == 2


FULL = """
import resource, signal, sys
from pathlib import Path
from tests.unit.edge.test_request_log import SIZE, line
from upwell.edge.observe.request_log import RequestLog
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4 * SIZE + 9, resource.RLIM_INFINITY))
log = RequestLog(Path(sys.argv[1]))
for number in range(10, 20):
    log.append(line(number), 1 << 20)
log.close()
print(log.written, log.failed, log.dropped)
"""


def test_a_full_disk_is_counted_and_leaves_whole_lines(tmp_path: Path) -> None:
    """A file that may not grow stands for a full disk: the system refuses the write half way, as it does there."""
    path = tmp_path / "log.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["4", "6", "0"]
    assert "the request log cannot be written" in done.stderr
    assert read(path) == [10, 11, 12, 13]


def test_a_disk_that_comes_back_is_used_again(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    log = RequestLog(folder / "log.jsonl")
    log.append(line(1), PLENTY)
    while not log.failed:
        threading.Event().wait(0.001)
    folder.mkdir()
    log.append(line(2), PLENTY)
    log.close()
    assert read(folder / "log.jsonl") == [2]
    assert (log.written, log.failed) == (1, 1)


@pytest.mark.parametrize(
    ("placement", "name"),
    [
        (Placement(), "fake"),
        (Placement("qnn", 10, 9), "fake+qnn"),
        (Placement("qnn", 10, 0, reason="not there"), "fake"),
    ],
)
def test_a_runtime_is_called_by_what_it_really_uses(placement: Placement, name: str) -> None:
    assert runtime_name(FakeRuntime(lambda inputs: inputs, [], [], placement=placement)) == name


def test_scores_of_more_classes_than_a_reader_takes_are_left_out() -> None:
    long = line(1).model_copy(update={"logits": tuple(number / 3 for number in range(100_000))})
    text = encode_line(long)
    assert len(text) < LONGEST_LINE_BYTES
    assert LogLine.model_validate_json(text) == long.model_copy(update={"logits": None})


def test_a_line_names_the_version_that_answered(tmp_path: Path) -> None:
    edge, former = edge_model(failure="broken"), edge_model()
    former.digest = "sha256:of-the-former-model"
    edge.trial = Trial(former.run_now, lambda _: None, lambda: None)
    rules, parts = policy("defaults: {record: {keep: 1MiB}}"), AgentParts(state_dir=StateDir(tmp_path))
    with AgentCore([ServedModel(MODEL, edge)], None, rules, parts) as agent:
        agent.infer(MODEL, rows_of(SURE))
    (text,) = (tmp_path / LOG_NAME).read_bytes().splitlines()
    assert LogLine.model_validate_json(text).edge_digest == former.digest
