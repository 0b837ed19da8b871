"""One model's queue and the device that it waits for, with time as an argument."""

from __future__ import annotations

import pytest

from upwell.cloud.batching.batch_choice import RunSizes
from upwell.cloud.batching.device_scheduler import Device
from upwell.cloud.batching.model_queue import ModelQueue
from upwell.cloud.batching.queued_request import QueuedRequest
from upwell.shared.errors import DeadlineExceeded, Refused
from upwell.shared.oip.dataplane import Call

RUN_S = 0.1


def queue_of(largest: int, **limits: int) -> ModelQueue:
    """A queue that knows what a run takes, whatever its rows."""
    queue = ModelQueue(RunSizes(largest), **limits)
    for _ in range(3):
        queue.observe(largest, RUN_S, 0.0)
        queue.observe(1, RUN_S, 0.0)
    return queue


def request(rows: int = 1) -> QueuedRequest:
    return QueuedRequest({}, Call(), rows, None, lambda _: (), 0.0, "client", 1)


def test_a_run_that_can_only_begin_later_is_hopeless_sooner() -> None:
    queue, call = queue_of(4), Call(deadline_s=0.25)
    assert queue.hopeless(call, 1, 0.0, 0.0) is None
    assert queue.hopeless(call, 1, 0.0, 0.1) is None
    assert isinstance(queue.hopeless(call, 1, 0.0, 0.2), DeadlineExceeded)


def test_who_is_refused_hears_when_all_that_waits_has_run_the_last_run_not_full() -> None:
    queue = queue_of(4, max_queue=2)
    queue.add(request(3))
    queue.add(request(2))
    with pytest.raises(Refused) as caught:
        queue.make_room("client", 1, 0.0, 0.05)
    assert caught.value.retry_after_s == pytest.approx(0.05 + 2 * RUN_S)


def test_a_device_that_is_busy_refuses_before_anything_is_prepared() -> None:
    device, queue = Device(), queue_of(4)
    device.admit(queue)
    device.check(queue, Call(deadline_s=0.15), "client", 1, 0.0)
    assert device.enter(queue, request(), 0.0) is not None
    with pytest.raises(DeadlineExceeded, match="busy for 100"):
        device.check(queue, Call(deadline_s=0.15), "client", 1, 0.0)
