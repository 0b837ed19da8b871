"""The supervisor's part of a load or unload: told to all, answered once, and remembered."""

from __future__ import annotations

from upwell.cloud.workers.calls_to_all_workers import CHANGE_LIMIT_S, Changes
from upwell.cloud.workers.worker_messages import Ask, Change, Done, Message, StartWorker, WorkerReply
from upwell.shared.oip.grpc.server.triton_extensions import LoadSettings

BROKEN = ("NotLoaded", "it is broken")


class Scene:
    """Three workers that serve `m`, and what they were told."""

    def __init__(self) -> None:
        self.told: list[tuple[int, Message]] = []
        self.changes = Changes(lambda number, message: self.told.append((number, message)))
        for number in (1, 2, 3):
            assert self.changes.start(number, {}) == [StartWorker(number, {})]
        self.changes.note({"m": ("1",)})

    def news(self) -> list[tuple[int, Message]]:
        """What was told since the last time."""
        told, self.told = self.told, []
        return told


def test_who_asks_is_answered_when_all_have_done_it() -> None:
    scene = Scene()
    scene.changes.ask(2, Ask(7, "m", False), 0.0)
    assert scene.news() == [(number, Change(1, "m", False)) for number in (1, 2, 3)]
    for number in (3, 2):
        scene.changes.done(number, Done(1, None, ("1", "2")))
        assert scene.news() == []
    scene.changes.done(1, Done(1, None, ("1", "2")))
    assert scene.news() == [(2, WorkerReply(7, None))]
    assert scene.changes.start(1, {}) == [StartWorker(1, {}, (), {"m": ("1", "2")})]


def test_one_change_is_made_at_a_time() -> None:
    scene = Scene()
    scene.changes.ask(1, Ask(1, "m", True), 0.0)
    scene.changes.ask(2, Ask(1, "n", False), 0.0)
    scene.news()
    for number in (1, 2, 3):
        scene.changes.done(number, Done(1, None, ("1",)))
    assert scene.news() == [(1, WorkerReply(1, None)), *((number, Change(2, "n", False)) for number in (1, 2, 3))]


def test_where_one_cannot_the_change_has_failed_but_is_remembered() -> None:
    scene = Scene()
    scene.changes.ask(1, Ask(1, "m", False), 0.0)
    scene.changes.done(1, Done(1, None, ("2",)))
    scene.changes.done(2, Done(1, BROKEN, ("2",)))
    scene.changes.done(3, Done(1, None, ("2",)))
    assert scene.news()[-1] == (1, WorkerReply(1, BROKEN))
    assert scene.changes.start(3, {}) == [StartWorker(3, {}, (), {"m": ("2",)})]


def test_those_that_come_later_get_the_settings_in_force_not_those_of_a_load_that_failed() -> None:
    scene, in_force = Scene(), LoadSettings(max_batch=2)
    scene.changes.ask(1, Ask(1, "m", False, LoadSettings(max_batch=8)), 0.0)
    for number in (1, 2, 3):
        scene.changes.done(number, Done(1, BROKEN, ("1",), in_force))
    assert scene.changes.start(3, {}) == [StartWorker(3, {}, (), {"m": ("1",)}, {"m": in_force})]


def test_what_is_unloaded_stays_so_for_those_that_come_later_until_it_is_loaded() -> None:
    scene = Scene()
    for count, unload in enumerate((True, False), 1):
        scene.changes.ask(1, Ask(count, "m", unload), 0.0)
        for number in (1, 2, 3):
            scene.changes.done(number, Done(count, None, ("1",)))
        assert scene.changes.start(3, {}) == [StartWorker(3, {}, ("m",) if unload else (), {"m": ("1",)})]


def test_what_changed_nothing_is_not_remembered() -> None:
    scene = Scene()
    scene.changes.ask(1, Ask(1, "none", True), 0.0)
    for number in (1, 2, 3):
        scene.changes.done(number, Done(1, ("ModelNotFound", "no model 'none' here")))
    assert scene.news()[-1] == (1, WorkerReply(1, ("ModelNotFound", "no model 'none' here")))
    assert scene.changes.start(3, {}) == [StartWorker(3, {}, (), {"m": ("1",)})]


def test_nobody_waits_for_a_worker_that_has_died() -> None:
    scene = Scene()
    scene.changes.ask(1, Ask(1, "m", False), 0.0)
    scene.changes.done(1, Done(1, None, ("1",)))
    scene.changes.done(2, Done(1, None, ("1",)))
    scene.news()
    scene.changes.gone(3)
    assert scene.news() == [(1, WorkerReply(1, None))]


def test_a_worker_that_begins_during_a_change_makes_it_too() -> None:
    scene = Scene()
    scene.changes.ask(1, Ask(1, "m", True), 0.0)
    scene.changes.gone(3)
    for number in (1, 2):
        scene.changes.done(number, Done(1, None, ("1",)))
    scene.news()
    scene.changes.ask(1, Ask(2, "m", False), 0.0)
    assert scene.changes.start(3, {}) == [StartWorker(3, {}, ("m",), {"m": ("1",)}), Change(2, "m", False)]
    for number in (1, 2):
        scene.changes.done(number, Done(2, None, ("1",)))
    assert scene.news() == [(number, Change(2, "m", False)) for number in (1, 2)]
    scene.changes.done(3, Done(2, None, ("1",)))
    assert scene.news() == [(1, WorkerReply(2, None))]


def test_a_worker_that_begins_does_not_make_the_change_that_ended_others() -> None:
    scene = Scene()
    scene.changes.ask(1, Ask(1, "m", False), 0.0)
    scene.changes.gone(3, ("m", "2"))
    scene.news()
    fatal = (("m", "2"),)
    assert scene.changes.start(3, {}, fatal) == [StartWorker(3, {}, (), {"m": ("1",)}, fatal=fatal)]
    for number in (1, 2):
        scene.changes.done(number, Done(1, None, ("1",)))
    assert scene.news() == [(1, WorkerReply(1, None))]


def test_a_change_is_not_skipped_for_a_version_that_ended_workers_before_it() -> None:
    for unload in (False, True):
        scene = Scene()
        scene.changes.ask(1, Ask(1, "m", unload), 0.0)
        scene.changes.gone(3, ("m", "1") if unload else ("n", "1"))
        fatal = (("m", "1"),)
        assert scene.changes.start(3, {}, fatal)[1:] == [Change(1, "m", unload)]


def test_the_successor_of_one_that_asked_is_told_nothing() -> None:
    scene = Scene()
    scene.changes.ask(3, Ask(1, "m", False), 0.0)
    scene.changes.ask(3, Ask(2, "n", False), 0.0)
    scene.changes.gone(3)
    scene.news()
    scene.changes.start(3, {})
    for number in (1, 2, 3):
        scene.changes.done(number, Done(1, None, ("1",)))
    assert scene.news() == []


def test_who_has_waited_for_the_limit_is_told_which_worker_did_not_answer_and_the_change_goes_on() -> None:
    scene = Scene()
    scene.changes.ask(1, Ask(1, "m", True), 0.0)
    scene.changes.ask(2, Ask(1, "n", False), 1.0)
    scene.changes.ask(3, Ask(1, "o", False), 2.0)
    scene.changes.done(1, Done(1, None, ("1",)))
    scene.news()
    scene.changes.answer_late(CHANGE_LIMIT_S - 0.1)
    assert scene.news() == []
    scene.changes.answer_late(CHANGE_LIMIT_S + 1.5)
    scene.changes.answer_late(CHANGE_LIMIT_S + 1.6)
    late = "worker 2, 3 has not unloaded model 'm' within 600 s; that goes on"
    queued = "no turn within 600 s: worker 2, 3 has not unloaded model 'm' yet; try again later"
    assert scene.news() == [
        (1, WorkerReply(1, ("Unavailable", late))),
        (2, WorkerReply(1, ("Unavailable", queued))),
    ]
    for number in (2, 3):
        scene.changes.done(number, Done(1, None, ("1",)))
    assert scene.news() == [(number, Change(2, "o", False)) for number in (1, 2, 3)]
    assert scene.changes.start(3, {})[0] == StartWorker(3, {}, ("m",), {"m": ("1",)})
