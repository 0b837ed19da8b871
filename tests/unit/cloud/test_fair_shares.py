"""Accounts of device seconds."""

from __future__ import annotations

import random

from upwell.cloud.batching.fair_shares import FairShares


def test_who_has_had_more_than_the_others_that_wait_is_ahead() -> None:
    shares: FairShares[str] = FairShares()
    shares.join("a")
    shares.join("b")
    assert shares.ahead({"a", "b"}, 0.0) == frozenset()
    shares.charge({"a": 1.0}, {"a", "b"})
    assert shares.ahead({"a", "b"}, 0.0) == {"a"}
    assert shares.ahead({"a", "b"}, 0.6) == frozenset()
    shares.charge({"b": 1.0}, {"a", "b"})
    assert shares.ahead({"a", "b"}, 0.0) == frozenset()


def test_alone_nobody_is_ahead_and_nothing_is_remembered_when_nobody_waits() -> None:
    shares: FairShares[str] = FairShares()
    shares.join("a")
    shares.charge({"a": 1.0}, {"a"})
    assert shares.ahead({"a"}, 0.0) == frozenset()
    shares.charge({"a": 1.0}, ())
    shares.join("b")
    assert shares.ahead({"a", "b"}, 0.0) == frozenset()


def test_nobody_saves_up_while_asking_for_nothing() -> None:
    shares: FairShares[str] = FairShares()
    shares.join("busy")
    for _ in range(100):
        shares.charge({"busy": 1.0}, {"busy"})
    shares.join("late")
    shares.charge({"late": 0.5}, {"busy", "late"})
    assert shares.ahead({"busy", "late"}, 0.0) == {"late"}


def test_served_by_its_word_all_get_the_same_whatever_their_runs_take() -> None:
    shares: FairShares[int] = FairShares()
    dice = random.Random(0)
    run_s = {one: 0.001 * 3**one for one in range(6)}
    for one in run_s:
        shares.join(one)
    had_s = dict.fromkeys(run_s, 0.0)
    for _ in range(5000):
        entitled = sorted(set(run_s) - shares.ahead(run_s.keys(), 0.0))
        chosen = dice.choice(entitled)
        took_s = run_s[chosen] * dice.uniform(0.5, 1.5)
        had_s[chosen] += took_s
        shares.charge({chosen: took_s}, run_s.keys())
    assert max(had_s.values()) - min(had_s.values()) < 3 * max(run_s.values())


def test_clients_that_are_gone_are_forgotten() -> None:
    shares: FairShares[int] = FairShares()
    shares.join(-1)
    for client in range(10_000):
        shares.join(client)
        shares.charge({client: 0.01}, {-1, client + 1})
        shares.join(client + 1)
    assert len(shares._accounts_s) < 1000


def test_who_comes_back_has_saved_nothing_up_meanwhile() -> None:
    shares: FairShares[str] = FairShares()
    for one in ("away", "busy", "other"):
        shares.join(one)
    shares.charge({"away": 0.1}, {"away", "busy", "other"})
    for _ in range(100):
        shares.charge({"busy": 1.0, "other": 1.0}, {"busy", "other"})
    shares.join("away")
    shares.charge({"away": 0.5}, {"away", "busy", "other"})
    assert shares.ahead({"away", "busy", "other"}, 0.0) == {"away"}
