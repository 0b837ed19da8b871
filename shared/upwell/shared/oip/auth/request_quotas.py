"""Enforces the limits of each client on requests, bytes and concurrency, as a `Dataplane` in front of another."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from upwell.shared.errors import Refused
from upwell.shared.oip.auth.caller import Grant, client_key, current_caller
from upwell.shared.oip.auth.limit_keys import UNLIMITED, Limits
from upwell.shared.oip.dataplane import Call, Dataplane, DataplaneLayer, InferRequest, InferResponse
from upwell.shared.routing.estimators.token_bucket import TokenBucket
from upwell.shared.tensors import Array

MAX_CLIENTS = 10_000
"""Maximum number of clients remembered. Beyond it, the least recent one is forgotten and starts anew."""

_MOST_LOOKED_AT = 64


def limited(dataplane: Dataplane, defaults: Limits, *, by_token: bool) -> Dataplane:
    """`dataplane` behind quotas, or unchanged if no client can have limits.

    `by_token` says that the server has a `tokens.yaml`, whose limits override `defaults`.
    """
    return Quotas(dataplane, defaults) if by_token or defaults != UNLIMITED else dataplane


class Quotas(DataplaneLayer):
    """Refuses requests beyond a client's limits before any work is done for them; passes everything else through.

    A client is identified by its token, else its certificate's common name, else its address without the port (of IPv6
    the /64 network). All servers behind one `Quotas` share its counts, in this process.
    """

    def __init__(self, dataplane: Dataplane, defaults: Limits) -> None:
        super().__init__(dataplane)
        self._defaults = defaults
        self._lock = threading.Lock()
        self._clients: OrderedDict[str, ClientQuota] = OrderedDict()

    def infer(self, request: InferRequest, call: Call) -> InferResponse:
        """Answer, or raise `Refused` if the client has used up its limits."""
        quota = self._quota(call)
        if quota is None:
            return self._dataplane.infer(request, call)
        quota.enter(size_bytes(request.inputs) if quota.counts_bytes else 0, time.monotonic())
        answered_bytes = 0
        try:
            response = self._dataplane.infer(request, call)
            if quota.counts_bytes:
                answered_bytes = size_bytes(response.outputs)
            return response
        finally:
            quota.leave(answered_bytes, time.monotonic())

    @contextmanager
    def reading(self, call: Call, size_bytes: int) -> Iterator[None]:
        """Read nothing for a client that has used up its limits; count unreadable messages as requests."""
        quota = self._quota(call)
        if quota is not None:
            quota.check(time.monotonic())
        try:
            with self._dataplane.reading(call, size_bytes):
                yield
        except BaseException:  # whatever made it unreadable, it was sent
            if quota is not None:
                quota.charge(size_bytes, time.monotonic())
            raise

    def _quota(self, call: Call) -> ClientQuota | None:
        """The client's quota, created on first use and when its limits change; None for a client without limits."""
        caller = current_caller()
        grant, key = (None, client_key(call.client)) if caller is None else (caller.grant, caller.key)
        with self._lock:
            quota = self._clients.get(key)
            if quota is not None and (quota.grant is grant or quota.grant == grant):
                quota.grant = grant  # a reloaded file with the same limits
                self._clients.move_to_end(key)
                return quota
        limits = self._defaults if grant is None else grant.limits.over(self._defaults)
        if limits == UNLIMITED:
            return None
        return self._remember(key, ClientQuota(grant, limits))

    def _remember(self, key: str, fresh: ClientQuota) -> ClientQuota:
        with self._lock:
            former = self._clients.get(key)
            if former is not None and former.grant is fresh.grant:  # another thread was faster
                return former
            if former is not None:
                fresh = former.under(fresh)
            elif len(self._clients) >= MAX_CLIENTS:
                self._forget_one()
            self._clients[key] = fresh
            self._clients.move_to_end(key)
            return fresh

    def _forget_one(self) -> None:
        """Forget the least recent client without a request in progress."""
        for _ in range(_MOST_LOOKED_AT):
            key, quota = self._clients.popitem(last=False)
            if quota.is_idle:
                return
            self._clients[key] = quota
        raise Refused("too many clients at once")


class ClientQuota:
    """What one client has used of its limits. Thread-safe; times are of `time.monotonic()`.

    `grant` is the source of the limits: the caller's, or None for the defaults alone.
    """

    def __init__(self, grant: Grant | None, limits: Limits) -> None:
        self.grant = grant
        self.counts_bytes = limits.bytes is not None
        """Whether `enter` and `leave` need sizes."""
        self._limits = limits
        self._lock = threading.Lock()
        self._under_way = 0
        refills = {"requests": limits.requests, "bytes": limits.bytes}
        self._refills = {what: refill for what, refill in refills.items() if refill is not None}
        self._buckets = dict.fromkeys(self._refills, TokenBucket())

    @property
    def is_idle(self) -> bool:
        """Whether the client has no request in progress."""
        return self._under_way == 0

    def enter(self, request_bytes: int, now_s: float) -> None:
        """Count a request, or raise `Refused` without counting it."""
        with self._lock:
            most = self._limits.concurrency
            if most is not None and self._under_way >= most:
                raise Refused(f"this client has {self._under_way} requests in progress, the most it may have")
            self._check("requests", 1.0, now_s)
            self._check("bytes", 0.0, now_s)
            self._under_way += 1
            self._take("requests", 1.0, now_s)
            self._take("bytes", request_bytes, now_s)

    def check(self, now_s: float) -> None:
        """Raise `Refused` if the client has used up its requests or bytes."""
        with self._lock:
            self._check("requests", 1.0, now_s)
            self._check("bytes", 0.0, now_s)

    def charge(self, size_bytes: int, now_s: float) -> None:
        """Count an unreadable message."""
        with self._lock:
            self._take("requests", 1.0, now_s)
            self._take("bytes", size_bytes, now_s)

    def leave(self, answer_bytes: int, now_s: float) -> None:
        """Count the end of a request."""
        with self._lock:
            self._under_way -= 1
            if answer_bytes:
                self._take("bytes", answer_bytes, now_s)

    def under(self, fresh: ClientQuota) -> ClientQuota:
        """This client under the limits of `fresh`: requests in progress still count, the buckets start anew."""
        with self._lock:
            self.grant, self.counts_bytes, self._limits = fresh.grant, fresh.counts_bytes, fresh._limits
            self._refills, self._buckets = fresh._refills, fresh._buckets
        return self

    def _check(self, what: str, least: float, now_s: float) -> None:
        if what not in self._refills:
            return
        refill = self._refills[what]
        self._buckets[what] = bucket = self._buckets[what].refilled(refill, now_s)
        wait_s = bucket.wait_s(least, refill)
        if wait_s > 0:
            raise Refused(
                f"this client has reached its limit of {what}; try again in {wait_s:.3g} s", retry_after_s=wait_s
            )

    def _take(self, what: str, amount: float, now_s: float) -> None:
        if what in self._refills:
            self._buckets[what] = self._buckets[what].refilled(self._refills[what], now_s).take(amount)


def size_bytes(tensors: Mapping[str, Array]) -> int:
    """Size of tensors as raw contents, without the length prefixes of BYTES elements."""
    total_bytes = 0
    for array in tensors.values():  # a plain loop, since it runs twice per request
        total_bytes += sum(map(len, array.ravel().tolist())) if array.dtype.hasobject else array.nbytes
    return total_bytes
