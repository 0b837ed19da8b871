"""The way to the cloud: endpoints in order of preference, and the check that keeps data on the device.

The prober asks the cloud without a request: the time of an empty call, and whether a preferred endpoint is back.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from upwell.edge.uplink.cloud_call import REASON_OF, CloudCall, ConnectionLease, FailedCall, Message
from upwell.edge.uplink.egress import EgressJudge, check_egress
from upwell.edge.uplink.endpoint import Connection, Endpoint, Sources, source_addresses
from upwell.edge.uplink.endpoint_selector import EndpointSelector
from upwell.edge.uplink.probe_timing import Prober
from upwell.shared.config.security import ClientSecurity
from upwell.shared.errors import ConfigError
from upwell.shared.oip.dataplane import InferRequest, ModelMetadata
from upwell.shared.oip.grpc.client.client import RemoteError, RemoteErrorKind
from upwell.shared.oip.open_client import Client
from upwell.shared.routing.decide.router_state import CloudMoved, LinkProbed, Outcome
from upwell.shared.routing.reasons import Reason
from upwell.shared.value_classes import value_class

SUSPECT = frozenset(
    {
        Reason.CLOUD_DEADLINE,
        Reason.CLOUD_UNAVAILABLE,
        Reason.CLOUD_CERTIFICATE,
        Reason.CLOUD_GARBAGE,
        Reason.CLOUD_ERROR,
    }
)
"""Failures that may be the fault of the connection itself (half open, out of step): the next call gets a new one."""

UNREACHED = frozenset({Reason.CLOUD_DEADLINE, Reason.CLOUD_UNAVAILABLE, Reason.CLOUD_CERTIFICATE})
"""Those of them in which nobody answered at all."""

ALIVE_S = 2.0
"""A connection that received something this recently, for another call, is slow rather than dead: it is kept."""

NETWORK_CHECK_S = 1.0
"""Minimum time between checks for a move to another network."""

ASK_TIMEOUT_S = 2.0
"""Time limit of an empty call, and of a readiness question."""

T = TypeVar("T")
_log = logging.getLogger(__name__)


@value_class
class UplinkSettings:
    """The cloud's endpoints: `endpoint`, or if that fails the first of `fallbacks` that works.

    `interfaces` are the network interfaces to reach it by, the preferred one first; empty if the system chooses.
    """

    endpoint: str
    security: ClientSecurity
    max_message_bytes: int
    fallbacks: Sequence[str] = ()
    interfaces: Sequence[str] = ()


class Uplink:
    """Sends requests to the cloud, over `interface` if one is named. No byte leaves before the first call that the
    policy allows.

    `observe` is called, from any thread, with moves (`CloudMoved`) and link probes (`LinkProbed`). A link probe is
    made if `wants_probe` says so, and only while there are requests that may leave. `look` returns the device's own
    addresses. Thread-safe. The constructor raises `ConfigError` for invalid endpoints or security files.
    """

    def __init__(
        self,
        settings: UplinkSettings,
        observe: Callable[[Outcome], None],
        wants_probe: Callable[[], bool],
        look: Callable[[Sequence[str], str], Sources] = source_addresses,
        interface: str = "",
    ) -> None:
        self.interface = interface
        self._addresses = (settings.endpoint, *settings.fallbacks)
        if len(set(self._addresses)) < len(self._addresses):
            raise ConfigError.at(None, "an endpoint is named twice; each fallback must be another one")
        self._endpoints = tuple(
            Endpoint(one, settings.security, settings.max_message_bytes, interface) for one in self._addresses
        )
        self._lock = threading.Lock()
        self._selector = EndpointSelector(len(self._endpoints))
        self._look = look
        self._sources: Sources | None = None
        self._looked_at_s = -math.inf
        self._candidate: EgressJudge | None = None
        self._prober = Prober(self._ask_around)
        self._observe = observe
        self._wants_probe = wants_probe
        self._is_well = True
        self._failures = 0

    @property
    def endpoint(self) -> str:
        """The endpoint in use."""
        return self._addresses[self._selector.place]

    @property
    def has_others(self) -> bool:
        """Whether there are other endpoints besides the one in use."""
        return len(self._endpoints) > 1

    @property
    def retry_at_s(self) -> float:
        """When to try the preferred endpoints again; infinity if there are none."""
        return self._selector.try_at_s if self._selector.place else math.inf

    @property
    def may_ask(self) -> bool:
        """Whether the cloud may be asked anything without a request: the last request that might leave still may."""
        candidate = self._candidate
        return candidate is not None and candidate().denial is None

    @property
    def wants_probe(self) -> bool:
        """Whether an empty call is worth its bytes: the router wants one, and the endpoint did nothing worse than
        being late.

        Whether one that failed is back is for the breaker to find out, unless requests take another interface.
        """
        return (self._is_well or bool(self.interface)) and self._wants_probe()

    def note_candidate(self, judge: EgressJudge) -> None:
        """A request that may leave was seen, whether it leaves or not: keep the link estimate fresh for a while.

        `judge` says, from any thread, whether that request may leave.
        """
        self._candidate = judge
        self._prober.note_candidate()

    def heed_policy(self) -> None:
        """Close the connections if nothing may leave any more. Call it about once a second.

        gRPC would keep them, and reopen those that break. Calls in progress finish normally.
        """
        if self._candidate is not None and not self.may_ask:
            for endpoint in self._endpoints:
                endpoint.renew()

    @staticmethod
    def encode(request: InferRequest, traceparent: str) -> Message:
        """The message for a request. Raises `InvalidRequest` for tensors that the protocol cannot carry."""
        return Message.of(request, traceparent)

    def start(
        self,
        request: InferRequest | Message,
        judge: EgressJudge,
        give_up_s: float,
        apart_from: CloudCall | None = None,
    ) -> CloudCall:
        """Send a request that may take until `give_up_s` (monotonic), and return at once.

        With `apart_from` it goes to another endpoint than that call, or if there is none over another connection.

        Bytes leave here, so the policy is asked here: raises `EgressForbidden` if it keeps the request on the device
        now, whatever was decided before. If the call cannot even begin (for example, the token file is gone), the
        returned `CloudCall` has already failed.
        """
        message = request if isinstance(request, Message) else Message.of(request)
        check_egress(judge)
        self._candidate = judge
        started_s = time.monotonic()
        self._look_around(started_s)
        self._prober.begin()
        try:
            apart_lease = None if apart_from is None else apart_from.lease
            lease = self._choose(apart_lease, len(message.data), give_up_s - started_s)
        except (ConfigError, RemoteError) as error:
            return CloudCall(self, None, FailedCall(error), message.id, started_s)
        try:
            pending = lease.link.client.infer_async(message.data, max(0.0, give_up_s - started_s), message.traceparent)
        except (ConfigError, RemoteError) as error:
            lease.endpoint.give_back(lease.link)
            return CloudCall(self, None, FailedCall(error), message.id, started_s)
        except BaseException:
            lease.endpoint.give_back(lease.link)
            raise
        return CloudCall(self, lease, pending, message.id, started_s)

    def metadata(self, model: str, judge: EgressJudge, timeout_s: float) -> ModelMetadata:
        """The cloud's metadata of a model. Raises `RemoteError`, and `EgressForbidden` like `start`."""
        return self._ask(judge, lambda client: client.metadata(model, timeout_s=timeout_s))

    def config_parameters(self, model: str, judge: EgressJudge, timeout_s: float) -> Mapping[str, str]:
        """The `parameters` of a model's configuration in the cloud. Raises like `metadata`."""
        return self._ask(judge, lambda client: client.config_parameters(model, timeout_s))

    def _ask(self, judge: EgressJudge, question: Callable[[Client], T]) -> T:
        check_egress(judge)
        if self._candidate is None:  # before any request: so that `heed_policy` closes this connection too
            self._candidate = judge
        lease = self._choose(None)
        try:
            return question(lease.link.client)
        except RemoteError as error:
            if REASON_OF.get(error.kind) in UNREACHED:  # a connection in backoff would fail the next request at once
                lease.endpoint.retire(lease.link)
            raise
        finally:
            lease.endpoint.give_back(lease.link)

    def close(self) -> None:
        """Cancel calls in progress, close the connections and end the thread. Calling it twice is harmless."""
        self._prober.stop()
        for endpoint in self._endpoints:
            endpoint.close()
        self._prober.join()

    def answered(
        self, lease: ConnectionLease, network_s: float, size_bytes: int = 0, failures: int | None = None
    ) -> None:
        """A call with so many bytes was answered, after `network_s` outside the server.

        `failures` are those before a call that says nothing where another has failed since.
        """
        lease.endpoint.answered(lease.link, network_s, size_bytes)
        place = self._endpoints.index(lease.endpoint)
        with self._lock:
            self._selector = self._selector.answered(place)
            if place == self._selector.place and failures in (None, self._failures):
                self._is_well = True

    def missed(self, lease: ConnectionLease, reason: Reason, started_s: float) -> bool:
        """A call, begun at `started_s`, has failed: its connection or the endpoint may be at fault.

        Returns whether the next call goes to the same endpoint all the same.
        """
        now_s = time.monotonic()
        heard_s = -math.inf if lease.link.answered_at_s is None else lease.link.answered_at_s
        lease.link.late += 1
        is_alive = heard_s > started_s or (now_s - heard_s < ALIVE_S and lease.link.late == 1)
        if reason in SUSPECT and not (reason is Reason.CLOUD_DEADLINE and is_alive):
            lease.endpoint.retire(lease.link, at_once=reason is Reason.CLOUD_DEADLINE and self.may_ask)
        if reason is Reason.CLOUD_UNAVAILABLE and _went_silent(lease.link, now_s - started_s):
            lease.endpoint.broke(lease.link)
        place = self._endpoints.index(lease.endpoint)
        if place == self._selector.place and reason is not Reason.CLOUD_DEADLINE:
            with self._lock:
                self._is_well = False
                self._failures += 1
        self._reorder(lambda one: one.missed(place, reason, now_s), f"{lease.endpoint.address} fails ({reason})")
        return self._selector.place == place

    def _ask_around(self) -> float:
        """Ask what is due and allowed without a request; return the seconds until something is due next."""
        if not self.may_ask:
            return Prober.POLL_S
        if time.monotonic() >= self.retry_at_s:
            self._try_better()
        if self.wants_probe:
            self._probe()
        # Outcomes change what is due: poll soon instead of signalling each of them.
        return min(Prober.POLL_S, max(0.0, self.retry_at_s - time.monotonic()))

    def _probe(self) -> None:
        """Time an empty call over the connection in use, where one has answered before. Its failure says nothing, but a
        server that answers requests alone has answered.
        """
        try:
            lease = self._choose(None)
        except (ConfigError, RemoteError):
            return
        started_s, failures = time.monotonic(), self._failures
        try:
            is_warm = lease.link.answered
            lease.link.client.server_live(ASK_TIMEOUT_S)
        except (ConfigError, RemoteError) as error:
            if isinstance(error, ConfigError) or error.kind in REASON_OF:
                is_late = isinstance(error, RemoteError) and error.kind is RemoteErrorKind.DEADLINE
                self._is_well = self._is_well and is_late
                return
        finally:
            lease.endpoint.give_back(lease.link)
        total_s = time.monotonic() - started_s
        self.answered(lease, total_s, failures=failures)
        if is_warm:
            self._observe(LinkProbed(total_s, interface=self.interface))

    def _try_better(self) -> None:
        """Ask the preferred endpoints whether they are ready, and return to the first that is."""
        better = range(self._selector.place)
        ready = next((place for place in better if self._is_ready(self._endpoints[place])), None)
        now_s = time.monotonic()
        self._reorder(lambda one: one.tried(ready, now_s), "a better endpoint is ready again")

    def _choose(
        self, apart_from: ConnectionLease | None, size_bytes: int = 0, within_s: float = 0.0
    ) -> ConnectionLease:
        selector, link = self._selector, None
        endpoint = self._endpoints[selector.place]
        if apart_from is not None:
            endpoint = self._endpoints[selector.after(self._endpoints.index(apart_from.endpoint))]
            link = apart_from.link if endpoint is apart_from.endpoint else None
        return ConnectionLease(endpoint, endpoint.take(link, size_bytes=size_bytes, within_s=within_s))

    def _is_ready(self, endpoint: Endpoint) -> bool:
        link: Connection | None = None
        try:
            link = endpoint.take()
            return link.client.ready(ASK_TIMEOUT_S)
        except (ConfigError, RemoteError):
            if link is not None:
                endpoint.retire(link)
            return False
        finally:
            if link is not None:
                endpoint.give_back(link)

    def _look_around(self, now_s: float) -> None:
        """After a move to another network every connection is dead, though nothing reports it."""
        with self._lock:
            if now_s - self._looked_at_s < NETWORK_CHECK_S:
                return
            self._looked_at_s = now_s
            before, self._sources = self._sources, self._look(self._addresses, self.interface)
            if before is None or self._sources == before:
                return
        _log.info("the device's address%s has changed: reconnecting to the cloud", self._over)
        for endpoint in self._endpoints:
            endpoint.renew()
        self._observe(CloudMoved(interface=self.interface))

    @property
    def _over(self) -> str:
        return f" over {self.interface}" if self.interface else ""

    def _reorder(self, change: Callable[[EndpointSelector], EndpointSelector], why: str) -> None:
        with self._lock:
            before, self._selector = self._selector, change(self._selector)
            place = self._selector.place
        if place != before.place:
            _log.warning("%s%s: requests go to %s", why, self._over, self._addresses[place])
            self._observe(CloudMoved(interface=self.interface))


def _went_silent(link: Connection, elapsed_s: float) -> bool:
    """Whether a call that broke after so long may have met its connection's limit on silence (`channel_options`)."""
    return elapsed_s >= (1 if link.answered else 2) * link.timeout_s
