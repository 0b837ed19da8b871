"""A crash names the model whose call it was."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from upwell.cloud.engines.named_calls import calls_of, model_in

PROGRAM = """
import faulthandler, os, signal, threading, time
from upwell.cloud.engines.named_calls import calls_of
faulthandler.enable(2)
waiting = threading.Event()
def wait():
    waiting.set()
    time.sleep(60)
threading.Thread(target=calls_of("other", "1"), args=(wait,), daemon=True).start()
waiting.wait()
calls_of("digits-large.v2", "17")(os.kill, os.getpid(), signal.SIGSEGV)
"""


@pytest.fixture(scope="module")
def traceback() -> str:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=30.0)
    assert done.returncode == -signal.SIGSEGV
    return done.stderr


def test_of_the_models_that_ran_the_one_whose_thread_crashed_is_named(traceback: str) -> None:
    assert "in model other version 1" in traceback
    assert model_in(traceback) == ("digits-large.v2", "17")


def test_where_an_engine_s_own_thread_crashed_it_is_the_only_one_that_ran_or_not_known(traceback: str) -> None:
    nobody_s = traceback.replace("Current thread", "Thread")
    assert model_in(nobody_s) is None
    assert model_in(nobody_s.replace("in model other version 1", "in run")) == ("digits-large.v2", "17")
    assert model_in("") is None


def test_a_crash_elsewhere_is_blamed_on_no_model_that_ran_meanwhile(traceback: str) -> None:
    assert model_in(traceback.replace("in model digits-large.v2 version 17", "in collect")) is None


def test_a_call_gives_what_the_function_gives() -> None:
    assert calls_of("m", "1")(divmod, 7, 2) == (3, 1)
