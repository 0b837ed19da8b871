"""Limits, and what a client has used of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from upwell.shared.config.yaml import parse_yaml
from upwell.shared.errors import ConfigError, DeadlineExceeded, Refused
from upwell.shared.oip.auth import request_quotas
from upwell.shared.oip.auth.caller import Caller, Grant, calling, client_key
from upwell.shared.oip.auth.limit_keys import UNLIMITED, Limits
from upwell.shared.oip.auth.request_quotas import ClientQuota, Quotas, limited, size_bytes
from upwell.shared.oip.dataplane import Call, InferRequest
from upwell.shared.oip.fake_dataplane import EXAMPLE, FakeDataplane
from upwell.shared.routing.estimators.token_bucket import Refill

REQUEST = InferRequest("echo", EXAMPLE)
HERE = Call(client="ipv4:10.0.0.1:5000")


def limits(**keys: object) -> Limits:
    return Limits.model_validate(keys)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The time that a `Quotas` sees, in its only element."""
    now = [100.0]
    with monkeypatch.context() as patched:
        patched.setattr(time, "monotonic", lambda: now[0])
        yield now


@pytest.mark.parametrize(
    ("text", "requests", "size"),
    [
        ("rate: 100/s", Refill(100.0, 100.0), None),
        ("rate: 30/min", Refill(0.5, 30.0), None),
        ("{rate: 30/min, burst: 5}", Refill(0.5, 5.0), None),
        ("{rate: 7200/h, bytes: 10MB/s}", Refill(2.0, 7200.0), Refill(1e7, 1e7)),
        ("bytes: 86400MiB/day", None, Refill(2.0**20, 86400 * 2.0**20)),
        ("concurrency: 4", None, None),
        ("{}", None, None),
    ],
)
def test_limits_are_read(text: str, requests: Refill | None, size: Refill | None) -> None:
    found = parse_yaml(text, Limits)
    assert (found.requests, found.bytes) == (requests, size)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rate: 100", "expected an amount in each period, such as 100/s"),
        ("rate: 0/s", "expected more than 0 per s, min, h or day"),
        ("rate: 5/month", "expected more than 0 per s, min, h or day"),
        ("rate: 1.5/s", "whole number"),
        ("bytes: 10/s", "without a unit"),
        ("bytes: 0/s", "expected more than 0"),
        ("burst: 5", "`burst` needs `rate`"),
        ("{rate: 5/s, burst: 0}", "burst"),
        ("concurrency: 0", "concurrency"),
        ("speed: 1", "speed"),
    ],
)
def test_wrong_limits_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_yaml(text, Limits)


def test_own_limits_stand_over_the_defaults_key_by_key() -> None:
    defaults = limits(rate="10/s", burst=3, concurrency=4, bytes="1MB/s")
    assert UNLIMITED.over(defaults) == defaults
    assert limits(concurrency=9).over(defaults) == limits(rate="10/s", burst=3, concurrency=9, bytes="1MB/s")
    assert limits(rate="5/s").over(defaults) == limits(rate="5/s", concurrency=4, bytes="1MB/s")
    assert defaults.over(UNLIMITED) == defaults


def test_without_limits_nothing_stands_in_the_way() -> None:
    fake = FakeDataplane()
    assert limited(fake, UNLIMITED, by_token=False) is fake
    guarded = limited(fake, UNLIMITED, by_token=True)
    for _ in range(50):
        guarded.infer(REQUEST, HERE)


def test_requests_beyond_the_rate_are_refused_with_the_time_to_wait(clock: list[float]) -> None:
    fake = FakeDataplane()
    guarded = Quotas(fake, limits(rate="2/s", burst=3))
    for _ in range(3):
        guarded.infer(REQUEST, HERE)
    with pytest.raises(Refused, match=r"its limit of requests; try again in 0\.5 s") as refused:
        guarded.infer(REQUEST, HERE)
    assert refused.value.retry_after_s == 0.5
    assert len(fake.requests) == 3
    clock[0] += 0.5
    guarded.infer(REQUEST, HERE)
    with pytest.raises(Refused):
        guarded.infer(REQUEST, HERE)
    guarded.infer(REQUEST, Call(client="ipv4:10.0.0.2:5000"))  # another has a share of its own


def test_bytes_are_counted_both_ways_and_a_large_one_is_paid_for_afterwards(clock: list[float]) -> None:
    guarded = Quotas(FakeDataplane(), limits(bytes="100B/s"))
    large = InferRequest("echo", {"fp32": np.ones((1, 100), np.float32)})
    guarded.infer(large, HERE)  # 400 bytes and as many back: the bucket of 100 is at -700
    with pytest.raises(Refused, match="its limit of bytes; try again in 7 s") as refused:
        guarded.infer(REQUEST, HERE)
    assert refused.value.retry_after_s == 7.0
    clock[0] += 7.0
    guarded.infer(REQUEST, HERE)


def test_requests_under_way_are_counted_until_they_end_however_they_end() -> None:
    fake = FakeDataplane()
    guarded = Quotas(fake, limits(concurrency=2))
    fake.hold()
    threads = [threading.Thread(target=guarded.infer, args=(REQUEST, HERE)) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert fake.arrived(2, 10.0)
    with pytest.raises(Refused, match="has 2 requests in progress, the most it may have") as refused:
        guarded.infer(REQUEST, Call(client="ipv4:10.0.0.1:6000"))  # from another port it is the same client
    assert refused.value.retry_after_s is None
    fake.release()
    for thread in threads:
        thread.join()
    for _ in range(5):
        with pytest.raises(DeadlineExceeded):
            guarded.infer(REQUEST, Call(deadline_s=0.0, client=HERE.client))
    guarded.infer(REQUEST, HERE)


def test_a_refused_request_uses_nothing_up(clock: list[float]) -> None:
    guarded = Quotas(FakeDataplane(), limits(rate="1/s", bytes="1B/s"))
    guarded.infer(REQUEST, HERE)  # 48 bytes at 1 B/s
    clock[0] += 46.9
    for _ in range(5):
        with pytest.raises(Refused, match="bytes"):
            guarded.infer(REQUEST, HERE)
    clock[0] += 0.1
    guarded.infer(REQUEST, HERE)


def test_the_limits_of_a_token_stand_over_the_defaults_and_change_with_its_file(clock: list[float]) -> None:
    guarded = Quotas(FakeDataplane(), limits(rate="1/min"))

    def allowed(grant: Grant) -> int:
        count = 0
        with calling(Caller("alice", "token:alice", grant)):
            try:
                while count < 100:
                    guarded.infer(REQUEST, HERE)
                    count += 1
            except Refused:
                pass
        return count

    assert allowed(Grant(limits=limits(rate="5/min"))) == 5
    assert allowed(Grant(limits=limits(rate="5/min"))) == 0  # the same in a file read anew
    assert allowed(Grant(limits=limits(rate="7/min"))) == 7
    assert allowed(Grant()) == 1
    with calling(Caller("alice", "certificate:alice", Grant(limits=limits(rate="5/min")))):
        guarded.infer(REQUEST, HERE)  # a certificate of the same name is somebody else


def test_what_is_under_way_counts_under_new_limits_too() -> None:
    before = ClientQuota(None, limits(concurrency=5))
    before.enter(0, 0.0)
    after = before.under(ClientQuota(None, limits(concurrency=1)))
    with pytest.raises(Refused):
        after.enter(0, 0.0)
    before.leave(0, 0.0)
    after.enter(0, 0.0)


def test_clients_remembered_are_bounded_and_the_busy_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_quotas, "MAX_CLIENTS", 3)
    fake = FakeDataplane()
    guarded = Quotas(fake, limits(rate="1/day", concurrency=1))
    fake.hold()
    busy = threading.Thread(target=guarded.infer, args=(REQUEST, HERE))
    busy.start()
    assert fake.arrived(1, 10.0)
    for number in range(20):
        with pytest.raises(DeadlineExceeded):
            guarded.infer(REQUEST, Call(deadline_s=0.0, client=f"ipv4:10.1.0.{number}:1"))
    assert len(guarded._clients) == 3
    with pytest.raises(Refused, match="in progress"):
        guarded.infer(REQUEST, HERE)
    fake.release()
    busy.join()


@pytest.mark.parametrize(
    ("client", "key"),
    [
        ("ipv4:10.0.0.1:5000", "10.0.0.1"),
        ("10.0.0.1:5000", "10.0.0.1"),
        ("ipv6:[2001:db8:1:2:3:4:5:6]:5000", "2001:db8:1:2::/64"),
        ("ipv6:%5B2001:db8:1:2:ffff::1%5D:5000", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9:5000", "2001:db8:1:2::/64"),
        ("ipv6:[::ffff:10.0.0.1]:5000", "10.0.0.1"),
        ("unix:", "unix"),
        ("unix:/run/a.sock", "unix"),
        ("unix", "unix"),
        ("dock-camera-7", "dock-camera-7"),
        ("a:b", "a:b"),
        ("", ""),
    ],
)
def test_a_client_without_a_name_is_its_address(client: str, key: str) -> None:
    assert client_key(client) == key


def test_sizes() -> None:
    texts = np.array([b"abc", b""], dtype=np.object_)
    assert size_bytes({"a": np.zeros((2, 3), np.float32), "b": texts}) == 27


def test_many_threads_of_one_client_pass_exactly_the_burst() -> None:
    fake = FakeDataplane()
    guarded = Quotas(fake, limits(rate="100/day"))
    refused = list[int]()

    def ask() -> None:
        for _ in range(50):
            try:
                guarded.infer(REQUEST, HERE)
            except Refused:
                refused.append(1)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(fake.requests), len(refused)) == (100, 300)
