"""One step of the drainer at a time, without its thread: what pauses, what wakes it, and what is forgotten."""

from __future__ import annotations

from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from upwell.edge.spool.spool_drainer import CaseSender, Drainer
from upwell.edge.spool.spooled_request import SpoolLimits
from upwell.shared.oip.dataplane import InferRequest, InferResponse
from upwell.shared.oip.grpc.client.client import RemoteError, RemoteErrorKind

LIMITS = SpoolLimits(rate_per_s=10.0, first_pause_s=1.0)


class Item(SimpleNamespace):
    """A stored case."""

    def infer_request(self) -> InferRequest:
        return InferRequest(self.model, {"x": np.ones((1, 1), np.float32)}, id=self.id)


class Held(Drainer):
    """A drainer whose thread ends at once; `pauses` are those that it would have made."""

    def __init__(self, send: Callable[[InferRequest], InferResponse], left_alone: Collection[str] = ()) -> None:
        self.pauses: list[float] = []
        self.resting: list[set[str]] = []
        self.left: list[Item] = [Item(id=f"case {number}", model="digits", tags={}, attempts=0) for number in range(9)]

        def next_due(_: float, resting: set[str]) -> Item | None:
            self.resting.append(resting)
            return None if "digits" in resting else self.left[0]

        store: Any = SimpleNamespace(
            next_due=next_due, next_due_s=lambda: None, postpone=lambda *_: None, finish=lambda *_: self.left.pop(0)
        )
        keeper: Any = SimpleNamespace(ask=lambda work: work(store), now_s=lambda: 100.0)
        quiet: Any = SimpleNamespace(add=lambda _: None, publish=lambda: None)
        sender = CaseSender(lambda request, _: send(request), lambda: True, lambda: left_alone, lambda *_: True)
        super().__init__(keeper, LIMITS, quiet, quiet, sender, seed=0)
        self.join(10.0)

    def _run(self) -> None:
        pass

    def _pause(self, pause_s: float) -> None:
        self.pauses.append(pause_s)

    def _idle(self, pause_s: float) -> None:
        self.pauses.append(pause_s)


def good(request: InferRequest) -> InferResponse:
    return InferResponse(request.model, {"y": np.ones((1, 1), np.float32)}, id=request.id)


def failing(kind: RemoteErrorKind) -> Callable[[InferRequest], InferResponse]:
    def send(_: InferRequest) -> InferResponse:
        raise RemoteError(kind, "it does not work")

    return send


def test_an_answer_to_anybody_ends_the_pauses_of_an_outage() -> None:
    drainer = Held(failing(RemoteErrorKind.INTERNAL))
    drainer._outages = 3
    drainer._failing = {"a", "b", "c", "d", "e"}
    assert drainer._misses == 5
    drainer.cloud_answered()
    assert drainer._misses == 0


def test_a_model_that_the_cloud_has_again_begins_with_a_short_pause_when_it_is_lost_again() -> None:
    drainer = Held(failing(RemoteErrorKind.NOT_FOUND))
    for count in (1, 2, 3):
        drainer._try(drainer.left[0])  # type: ignore[arg-type]  # what is read of it
        assert drainer._rests["digits"].count == count
    drainer._sender = CaseSender(lambda request, _: good(request), lambda: True, tuple, lambda *_: True)
    drainer._try(drainer.left[0])  # type: ignore[arg-type]
    assert drainer._rests == {}


def test_models_that_must_wait_are_not_asked_for() -> None:
    drainer = Held(good, left_alone=("digits",))
    drainer._step()
    assert drainer.resting == [{"digits"}]
    assert len(drainer.left) == 9


@pytest.mark.parametrize(("took_s", "pause_s"), [(0.02, 0.08), (0.06, 0.06), (0.5, 0.5)])
def test_between_two_cases_is_the_rate_and_half_of_the_time(
    took_s: float, pause_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    drainer = Held(good)

    def took(request: InferRequest) -> InferResponse:
        drainer._took_s = took_s
        return good(request)

    monkeypatch.setattr(drainer, "_send_timed", took)
    drainer._step()
    assert drainer.pauses == [pytest.approx(pause_s)]
