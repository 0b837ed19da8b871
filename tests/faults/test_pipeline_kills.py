"""Kill -9 in the middle of pipelines: each event is told at least once, under one key, in order, and none is made up.

A file begins anew with each start, so each start tells events of its own. What joins them is the outbox: sequence
numbers go on without a gap, which a lost event would leave, and the file of events and the receiver of the webhook end
with the same.
"""

from __future__ import annotations

import hmac
import json
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.faults.programs import Program
from tests.pipelines_media import LiveServer, MadeVideo, Viewer, until
from tests.pipelines_run import FOLLOWED, pipelines_text, running_pipelines, write_agent, write_video
from upwell.pipelines.sinks.webhook import signature
from upwell.pipelines.sources.base import SourceState
from upwell.tools.demo import digit_data

SECRET = b"secret-of-the-tests"
LIMIT_S = 60.0
EVENTS = [{"name": "seen", "on": "frame"}, {"name": "passed", "on": "cross middle"}, {"name": "left", "on": "leave"}]


@dataclass(frozen=True)
class Posted:
    """What came: the idempotency key, the body, and whether the signature was good."""

    key: str
    body: bytes
    is_signed: bool


class Receiver:
    """A receiver of webhooks on the loopback; every `refuses_each`-th POST is answered with 503, 0 for none."""

    def __init__(self, refuses_each: int = 0) -> None:
        self.posted: list[Posted] = []
        self.refuses_each = refuses_each
        self._count = 0
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                given = self.headers["Upwell-Signature"]
                sent_s = int(given.partition(",")[0].removeprefix("t="))
                is_signed = hmac.compare_digest(given, signature(SECRET, sent_s, body))
                receiver._count += 1
                is_refused = receiver.refuses_each and receiver._count % receiver.refuses_each == 0
                if not is_refused:
                    receiver.posted.append(Posted(self.headers["Idempotency-Key"], body, is_signed))
                self.send_response(503 if is_refused else 204)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.block_on_close = False  # a connection that is kept ends with the process at its other end
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/hook"

    @contextmanager
    def serving(self) -> Iterator[Receiver]:
        """Receive until the end of the block."""
        thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()


def decoders_of(pid: int) -> list[int]:
    """The processes that decode for it."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            is_child = int(status.read_text().rpartition(")")[2].split()[1]) == pid
            if is_child and b"decoder_child" in (status.parent / "cmdline").read_bytes():
                found.append(int(status.parent.name))
        except OSError:
            continue  # it has ended
    return found


def has_ended(pid: int) -> bool:
    """Whether it is gone, or only not yet waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def first_of_each(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without what is told again, which has to be told the same."""
    seen: dict[str, dict[str, Any]] = {}
    for event in events:
        assert seen.setdefault(event["id"], event) == event
    return list(seen.values())


def run_and_kill(folder: Path, kills: int, frames: int, refuses_each: int = 0) -> None:
    """Start pipelines on a made video again and again, and kill each but the last in the middle."""
    dice = random.Random(kills)
    pictures = digit_data.video(digit_data.cards(12, seed=3))
    video = write_video(folder / "cards.mp4", islice(pictures, frames))
    (folder / "secret").write_bytes(SECRET + b"\n")
    with Receiver(refuses_each).serving() as receiver:
        sinks = [
            {"jsonl": str(folder / "dock.jsonl")},
            {"webhook": {"url": receiver.url, "secret_file": str(folder / "secret")}},
        ]
        dock = {"source": {"video": str(video)}, "steps": [*FOLLOWED], "events": EVENTS, "sinks": sinks}
        (folder / "pipelines.yaml").write_text(pipelines_text(folder, dock=dock))
        arguments = ["run", str(folder / "pipelines.yaml"), "-c", str(write_agent(folder))]
        # Each refusal is a pause of about a second, and the program ends some seconds after the video.
        most = 2 * refuses_each or frames // 2
        for _ in range(kills):
            with Program(arguments, cwd=str(folder)) as program:
                enough = len(receiver.posted) + dice.randint(1, most)

                def has_enough(program: Program = program, enough: int = enough) -> bool:
                    assert program.process.poll() is None, "".join(program.lines)
                    return len(receiver.posted) >= enough

                until(has_enough, "enough events", LIMIT_S)
                decoders = decoders_of(program.pid)
                program.process.kill()
                assert program.wait() == -9, "".join(program.lines)
                until(lambda decoders=decoders: all(map(has_ended, decoders)), "its decoders ended", LIMIT_S)  # type: ignore[misc]
        receiver.refuses_each = 0  # the last one waits some seconds at most for its sinks, and keeps the rest
        with Program(arguments, cwd=str(folder)) as program:
            assert program.wait(LIMIT_S) == 0, "".join(program.lines)
    posted = [json.loads(one.body) for one in receiver.posted]
    assert all(one.is_signed and one.key == event["id"] for one, event in zip(receiver.posted, posted, strict=True))
    written = [json.loads(line) for line in (folder / "dock.jsonl").read_text().splitlines()]
    in_file, at_webhook = first_of_each(written), first_of_each(posted)
    assert in_file == at_webhook  # the same ones, in the same order
    assert [event["sequence"] for event in in_file] == list(range(1, len(in_file) + 1))
    assert sum(event["event"] == "seen" for event in in_file) >= frames + kills


def test_what_a_killed_process_had_to_say_is_said_by_the_next(tmp_path: Path) -> None:
    run_and_kill(tmp_path, kills=1, frames=24)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("refuses_each", [0, 7])
def test_killed_ten_times_every_event_is_told_under_one_key_and_in_order(tmp_path: Path, refuses_each: int) -> None:
    run_and_kill(tmp_path, kills=10, frames=100, refuses_each=refuses_each)


@pytest.mark.slow
def test_a_camera_that_goes_and_comes_back_disturbs_no_other_pipeline(tmp_path: Path) -> None:
    video = MadeVideo(count=40, fps=10).chunks()

    def goes(viewer: Viewer) -> None:
        viewer.reply()
        viewer.play(video[:15], 10)
        viewer.reset()

    def is_away(viewer: Viewer) -> None:
        viewer.reply("404 Not Found", "text/plain")

    def stays(viewer: Viewer) -> None:
        viewer.reply()
        for start in range(0, 4000, 40):
            viewer.play(MadeVideo(count=40, first=start, start_s=start / 10, fps=10).chunks(), 10)

    with LiveServer(goes, is_away, stays) as leaving, LiveServer(stays) as reachable:
        pipelines = {
            name: {
                "source": {"video": server.address, "deadline": "1m"},
                "steps": [*FOLLOWED],
                "events": [{"name": "seen", "on": "frame"}],
            }
            for name, server in (("leaving", leaving), ("staying", reachable))
        }
        with running_pipelines(tmp_path, write_agent(tmp_path), pipelines_text(tmp_path, **pipelines)) as it:
            one, other = (it.runner.pipelines[name] for name in ("leaving", "staying"))
            until(lambda: one.status.source.state is SourceState.LOST, "the camera is lost", LIMIT_S)
            before = one.status.frames["answered"]
            at_loss = other.status.frames["answered"]
            until(lambda: other.status.frames["answered"] >= at_loss + 5, "the other one goes on", LIMIT_S)
            until(lambda: one.status.frames["answered"] >= before + 5, "the camera is back", LIMIT_S)
            back, undisturbed = one.status, other.status
    assert back.source.reconnects >= 2
    assert (undisturbed.source.reconnects, undisturbed.frames["source_lost"]) == (0, 0)
    assert undisturbed.frames["answered"] + undisturbed.frames["superseded"] == undisturbed.captured
    for name, pipeline in (("leaving", one), ("staying", other)):
        status = pipeline.status
        assert status.captured == sum(status.frames.values())
        assert len(it.events(name)) == status.frames["answered"]
