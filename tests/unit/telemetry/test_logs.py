"""Log lines for machines: one JSON object each, whatever they hold."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys

import pytest

from upwell.shared.telemetry.log_context import note_request, note_trace, request_id
from upwell.shared.telemetry.logs import FIELDS, JsonFormatter
from upwell.shared.telemetry.tracing import Place

PLACE = Place("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", True)


@pytest.fixture(autouse=True)
def _afterwards() -> None:
    note_request("")


def line(message: str, *arguments: object, **named: object) -> dict[str, object]:
    record = logging.makeLogRecord({"name": "n", "levelname": "INFO", "msg": message, "args": arguments, **named})
    text = JsonFormatter().format(record)
    assert "\n" not in text
    found: dict[str, object] = json.loads(text)
    return found


def test_a_line_says_when_who_and_what() -> None:
    found = line("a %s\nb", '"x"')
    assert {name: found[name] for name in ("level", "logger", "message")} == {
        "level": "INFO", "logger": "n", "message": 'a "x"\nb',
    }  # fmt: skip
    assert str(found["ts"]).endswith("+00:00")
    assert set(found) == {"ts", "level", "logger", "message"}


def test_a_line_names_its_request_and_its_trace() -> None:
    note_request("r1", "dock", "digits", str(PLACE))
    assert request_id() == "r1"
    found = line("x")
    assert {name: found[name] for name in ("request_id", "client", "model", "trace_id")} == {
        "request_id": "r1", "client": "dock", "model": "digits", "trace_id": PLACE.trace_id,
    }  # fmt: skip
    note_trace("f" * 32)
    assert line("x")["trace_id"] == "f" * 32
    note_request("r2", traceparent="rubbish")
    assert {"request_id", "trace_id", "client"} & set(line("x")) == {"request_id"}


def test_an_error_and_further_fields_are_in_the_object() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        found = line("x", exc_info=sys.exc_info(), **{FIELDS: {"took_ms": 1.5}})
    assert "ValueError: two\nlines" in str(found["error"])
    assert found["took_ms"] == 1.5


def test_everything_on_standard_error_is_json() -> None:
    """Also what the program says itself, warnings, and errors that end a thread or the program."""
    script = """
import logging, threading, warnings
from upwell.shared.telemetry.logs import set_up_logs
console = set_up_logs("json", worker=3)
console.print("serving on [x]\\n", markup=False)
warnings.warn("odd")
logging.getLogger("a").info("hello")
def fail(): raise ValueError("in a thread")
thread = threading.Thread(target=fail); thread.start(); thread.join()
raise KeyError("at the end")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    lines = [json.loads(text) for text in done.stderr.splitlines()]
    assert [(one["level"], one["worker"]) for one in lines] == [
        ("INFO", 3), ("WARNING", 3), ("INFO", 3), ("CRITICAL", 3), ("CRITICAL", 3),
    ]  # fmt: skip
    assert lines[0]["message"] == "serving on [x]"
    assert "in a thread" in lines[3]["error"]
    assert "at the end" in lines[4]["error"]


@pytest.mark.parametrize("format", ["text", "json"])
def test_more_details_are_ours_and_not_those_of_every_picture(format: str) -> None:
    script = f"""
import logging
from upwell.shared.telemetry.logs import set_up_logs
set_up_logs({format!r}, logging.DEBUG)
logging.getLogger("upwell.edge").debug("ours")
logging.getLogger("PIL.PngImagePlugin").debug("theirs")
logging.getLogger("PIL.PngImagePlugin").info("worth saying")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert [word for word in ("ours", "theirs", "worth saying") if word in done.stderr] == ["ours", "worth saying"]


@pytest.mark.parametrize("stderr", ["/dev/full", "a pipe that nobody reads", "closed"])
def test_what_nobody_can_hear_ends_no_program(stderr: str) -> None:
    """Else a full disk would keep an agent from starting, and end it before it has drained."""
    script = """
import logging
import os
from upwell.shared.telemetry.logs import set_up_logs
console = set_up_logs("text")
for _ in range(2):
    logging.getLogger("a").warning("hello")
    console.print("draining")
print("drained")
"""
    read, write = os.pipe()
    os.close(read)
    with open("/dev/full", "wb") as full, open(write, "wb") as unread:
        done = subprocess.run(
            [sys.executable, "-c", script],
            stdout=subprocess.PIPE,
            stderr=full if stderr == "/dev/full" else unread,
            preexec_fn=(lambda: os.close(2)) if stderr == "closed" else None,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stdout) == (0, b"drained\n")
