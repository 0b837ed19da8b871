"""Admission before any work is done: a rate limit per source, and what a request may ask of the device."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Mapping

from upwell.shared.errors import Refused
from upwell.shared.routing.estimators.token_bucket import Refill, TokenBucket
from upwell.shared.routing.policy.settings import Settings, SourceLimits
from upwell.shared.routing.request_tags import LONGEST_KEY, tag_key
from upwell.shared.routing.scheduling.run_request import RUN_REQUESTS, RunRequest

MAX_SOURCES = 4096
"""Maximum number of sources remembered, since callers may invent any number of tag values."""

_FULL = TokenBucket()


class Admission:
    """The token buckets of all sources of one agent. Thread-safe; the lock is held for microseconds."""

    def __init__(self, max_sources: int = MAX_SOURCES) -> None:
        self._max_sources = max_sources
        self._buckets: OrderedDict[tuple[str, str, str], TokenBucket] = OrderedDict()  # least recently used first
        self._lock = threading.Lock()

    def admit(self, model: str, settings: Settings, tags: Mapping[str, str], now_s: float) -> RunRequest:
        """The run that the policy grants the request. Raises `Refused` if its source exceeds its rate.

        A request without the source's tag counts towards the source "" and replaces no other request: nothing shows
        that two such requests belong together.
        """
        source = settings.source
        if source is None:
            return RUN_REQUESTS[settings.priority]
        key, value = _key(model, source, tags), tags.get(source.tag, "")
        if math.isfinite(source.rate_per_s):
            self._take(key, source, value, now_s)
        stream = key if source.keep_latest and value else None
        return RunRequest(priority=settings.priority, stream=stream)

    def give_back(self, model: str, settings: Settings, tags: Mapping[str, str]) -> None:
        """Return the token of a request that was admitted and then refused, since nothing was run for it."""
        source = settings.source
        if source is None:
            return
        key = _key(model, source, tags)
        with self._lock:
            bucket = self._buckets.get(key)
            if bucket is not None:
                self._buckets[key] = bucket.give()

    def _take(self, key: tuple[str, str, str], source: SourceLimits, value: str, now_s: float) -> None:
        refill = second_s_worth(source.rate_per_s)
        with self._lock:
            bucket = self._buckets.get(key, _FULL).refilled(refill, now_s)
            wait_s = bucket.wait_s(1.0, refill)
            self._buckets[key] = bucket if wait_s else bucket.take()
            self._buckets.move_to_end(key)
            if len(self._buckets) > self._max_sources:
                self._buckets.popitem(last=False)
        if wait_s:
            name = value if len(value) <= LONGEST_KEY else value[:LONGEST_KEY] + "…"
            raise Refused(
                f"source {source.tag}={name!r} exceeds its rate of {source.rate_per_s:g} requests per second; "
                f"try again in {math.ceil(wait_s * 1e3)} ms"
            )


def second_s_worth(rate_per_s: float) -> Refill:
    """The refill of a source: a burst of at most one second's requests, or one request.

    A source with the rate r thus gets at most r·(t + 1) requests through in t seconds, one more if r is below one.
    """
    return Refill(rate_per_s, max(1.0, rate_per_s))


def _key(model: str, source: SourceLimits, tags: Mapping[str, str]) -> tuple[str, str, str]:
    return (model, source.tag, tag_key(tags.get(source.tag, "")))
