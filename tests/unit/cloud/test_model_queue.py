"""One model's queue and the device that it waits for, with time as an argument."""

from __future__ import annotations

import math
import threading

import pytest

from upwell.cloud.batching.batch_choice import RunSizes
from upwell.cloud.batching.device_scheduler import Device
from upwell.cloud.batching.model_queue import ModelQueue, QueuedRequest
from upwell.shared.errors import DeadlineExceeded, Refused
from upwell.shared.oip.dataplane import Call

RUN_S = 0.1


def queue_of(largest: int, max_queue: int = 64, instances: int = 1) -> ModelQueue:
    """A queue that knows what a run takes, whatever its rows."""
    queue = ModelQueue(RunSizes(largest), instances=instances, max_queue=max_queue)
    for _ in range(3):
        queue.observe(largest, RUN_S, 0.0)
        queue.observe(1, RUN_S, 0.0)
    return queue


def request_of(client: str, deadline_s: float = math.inf) -> QueuedRequest:
    """It shares no run with another client's."""
    return QueuedRequest({}, Call(deadline_s=deadline_s), 1, client, lambda _: (), 0.0, client)


def request(rows: int = 1) -> QueuedRequest:
    return QueuedRequest({}, Call(), rows, None, lambda _: (), 0.0, "client", 1)


def test_a_run_that_can_only_begin_later_is_hopeless_sooner() -> None:
    queue, call = queue_of(4), Call(deadline_s=0.25)
    assert queue.hopeless(call, 1, 0.0, 0.0) is None
    assert queue.hopeless(call, 1, 0.0, 0.1) is None
    assert isinstance(queue.hopeless(call, 1, 0.0, 0.2), DeadlineExceeded)


def test_a_deadline_that_is_reached_is_hopeless_whatever_a_run_takes() -> None:
    assert isinstance(ModelQueue(RunSizes(4)).hopeless(Call(deadline_s=1.0), 1, 1.0, 1.0), DeadlineExceeded)


def test_what_is_too_late_makes_room_for_others() -> None:
    queue, late = queue_of(4, max_queue=1), QueuedRequest({}, Call(deadline_s=1.0), 1, None, lambda _: (), 0.0)
    late.wake_up = threading.Event()
    queue.add(late)
    assert queue.make_room("client", 1, 2.0, 2.0) is None
    assert isinstance(late.error, DeadlineExceeded)
    assert late.wake_up.is_set()


def test_of_rows_that_differ_in_size_only_those_that_take_too_long_are_dropped() -> None:
    queue = ModelQueue(RunSizes(4, (1, 4)), rows_differ=True)
    for _ in range(3):
        queue.observe(1000, RUN_S, 0.0)
    short, long = request_of("a", 0.5 * RUN_S), request_of("b", 0.5 * RUN_S)
    long.row_elements = 1000
    queue.add(long)
    queue.add(short)
    assert queue.take(0.0) == ([short], [long])
    assert isinstance(long.error, DeadlineExceeded)


def test_who_waits_and_asks_again_keeps_its_claim() -> None:
    queue = queue_of(4)
    queue.add(request_of("a", 9.0))
    queue.add(request_of("b", 5.0))
    for _ in range(2):
        queue.charge([request_of("b")], 0.925)
    queue.add(request_of("a", 9.0))
    queue.charge([request_of("a")], 0.9)
    batch, _ = queue.take(0.5)
    assert {one.client for one in batch} == {"a"}  # which had half as much as the other


def test_who_loses_its_place_is_told_at_once() -> None:
    queue, waiting = queue_of(4, max_queue=1), request_of("b")
    waiting.wake_up = threading.Event()
    queue.add(waiting)
    queue.displace(waiting, 0.0, 0.0)
    assert isinstance(waiting.error, Refused)
    assert waiting.wake_up.is_set()
    assert not len(queue)


@pytest.mark.parametrize("way", ["run", "left", "late"])
def test_who_has_nothing_waiting_any_more_takes_the_place_of_who_has_most(way: str) -> None:
    queue = queue_of(4, max_queue=3)
    former = [request_of("a", 1.0 if way == "late" else math.inf) for _ in range(3)]
    for one in former:
        queue.add(one)
        if way == "run":
            assert queue.take(0.5) == ([one], [])
    if way == "run":
        assert not len(queue)
    elif way == "late":
        assert queue.make_room("b", 1, 2.0, 2.0) is None
    else:
        assert all(queue.remove(one) for one in former)
    for _ in range(3):
        queue.add(request_of("b"))
    displaced = queue.make_room("a", 1, 2.0, 2.0)
    assert displaced is not None
    assert displaced.client == "b"


def test_a_request_of_which_pieces_have_run_keeps_its_place() -> None:
    queue, begun, fresh = queue_of(4, max_queue=2), request(8), request(8)
    begun.rows_left = 4
    for one in (begun, fresh):
        queue.add(one)
    assert queue.make_room("another", 1, 0.0, 0.0) is fresh


def test_who_is_refused_hears_when_all_that_waits_has_run_the_last_run_not_full() -> None:
    for instances in (1, 2):
        queue = queue_of(4, max_queue=2, instances=instances)
        queue.add(request(3))
        queue.add(request(2))
        with pytest.raises(Refused) as caught:
            queue.make_room("client", 1, 0.0, 0.05)
        assert caught.value.retry_after_s == pytest.approx(0.05 + 2 * RUN_S / instances)


def test_a_device_that_is_busy_refuses_before_anything_is_prepared() -> None:
    device, queue = Device(), queue_of(4)
    device.admit(queue)
    device.check(queue, Call(deadline_s=0.15), "client", 1, 0.0)
    assert device.enter(queue, request(), 0.0) is not None
    with pytest.raises(DeadlineExceeded, match="busy for 100"):
        device.check(queue, Call(deadline_s=0.15), "client", 1, 0.0)


def test_a_model_has_no_more_runs_at_once_than_its_instances_however_free_its_device_is() -> None:
    device, one, other = Device(), queue_of(1), queue_of(1, instances=2)
    for queue in (one, other):
        device.admit(queue)
    first = device.enter(one, request(), 0.0)
    assert first is not None
    waiting = request()
    assert device.enter(one, waiting, 0.0) is None
    batch = device.enter(other, request(), 0.0)
    assert batch is not None
    assert device.done(batch, 0.1) == []
    assert (one.running, other.running) == (1, 0)
    (following,) = device.done(first, 0.2)
    assert following.entries == [waiting]


def test_a_model_that_has_gone_takes_its_places_on_the_device_with_it() -> None:
    device, one, other, gone = Device(), queue_of(1), queue_of(1), queue_of(1, instances=4)
    for queue in (one, other, gone):
        device.admit(queue)
    device.dismiss(gone)
    assert device.enter(one, request(), 0.0) is not None
    assert device.enter(other, request(), 0.0) is None


def test_a_run_that_ends_leaves_the_others_of_its_model_running() -> None:
    device, queue = Device(), queue_of(1, instances=2)
    device.admit(queue)
    batches = [device.enter(queue, request(), 0.0) for _ in range(2)]
    assert batches[0] is not None
    device.done(batches[0], 0.1)
    assert queue.running == 1


def test_who_is_to_tell_the_others_of_its_batch_cannot_leave_any_more() -> None:
    device, queue = Device(), queue_of(1)
    device.admit(queue)
    first, waiting, last = request(), request(), request()
    batch = device.enter(queue, first, 0.0)
    for one in (waiting, last):
        assert device.enter(queue, one, 0.0) is None
    assert batch is not None
    (following,) = device.done(batch, 0.1)
    device.done(following, 0.2)
    assert waiting.notifies is following
    assert not device.leave(queue, waiting)
    assert device.leave(queue, last)


def test_more_rows_than_a_run_holds_take_as_many_runs_as_they_fill() -> None:
    queue = queue_of(4)
    assert [round(queue.needed_s(rows, 0.0) / RUN_S) for rows in (4, 5, 8, 9)] == [1, 2, 2, 3]
