"""The actions that the flow of a request asks of its driver, and the results.

Each action says what the driver sends back for it; an `UpwellError` is passed to `RequestFlow.fail` instead.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Protocol, TypeAlias, TypeVar

from upwell.shared.routing.decide.router_state import Decision, Outcome, RouterState, Signals, SplitRoute
from upwell.shared.routing.decide.send_turn import Turn
from upwell.shared.routing.policy.settings import HardSettings
from upwell.shared.routing.reasons import Reason
from upwell.shared.routing.scheduling.send_queue import QueuedMessage
from upwell.shared.value_classes import value_class

T = TypeVar("T")
Rows: TypeAlias = tuple[int, ...]


@value_class
class Admit:
    """Admit the request to the device. Returns the number of runs before it. Raises `Refused`."""

    decision: Decision


@value_class
class RunEdge:
    """Run the model on the device for these rows. `is_owed`: it stands in for the cloud, so it is never refused, and is
    withdrawn if a call ends while it waits for its turn.

    Returns the run's time in seconds, or of a withdrawn run the list of `CallEnded`, as `Wait` does. Raises as
    `EdgeModel.run` does.
    """

    rows: Rows
    deadline_s: float
    is_owed: bool


@value_class
class RunHead:
    """Run the head of a split model for the rows of `decision`. Returns the run's time in seconds; raises likewise."""

    split_route: SplitRoute
    decision: Decision


@value_class
class Score:
    """Measure the hardness of these rows, which the device has answered. Returns one number each; None if
    impossible."""

    rows: Rows
    hard: HardSettings


@value_class
class Encode:
    """Make the message with the rows of the attempt of that number. Returns its size in bytes. Raises
    `InvalidRequest`."""

    attempt: int


@value_class
class Send:
    """Send the message of an attempt as the call of that name, under the policy in force at this moment.

    `known` is the state before this message: rules may refer to the link without it. `apart_from` names a call with
    which it should share neither endpoint nor connection. Returns `MessageSent` or `CloudFailure`, the latter if the
    policy now keeps the request on the device.
    """

    attempt: int
    call: str
    known: RouterState
    apart_from: str = ""


@value_class
class JoinQueue:
    """Put a message into the queue before the link. From then on `Wait` also ends when its turn may have come; the
    outcome of its call removes it."""

    message: QueuedMessage


@value_class
class Wait:
    """Wait until a call ends or until a time, which may have passed. Returns a list of `CallEnded`."""

    until_s: float


@value_class
class GiveUp:
    """Cancel a late call. Returns its `CallEnded`."""

    call: str


@value_class
class Cancel:
    """Cancel a call whose answer is no longer needed, which says nothing about the cloud."""

    call: str


@value_class
class Reserve:
    """Reserve a slot of the device for a run that may have to stand in for the cloud. Returns its start time."""

    start_s: float
    end_s: float


@value_class
class Release:
    """Release the slot."""


Action: TypeAlias = (
    Admit | RunEdge | RunHead | Score | Encode | JoinQueue | Send | Wait | GiveUp | Cancel | Reserve | Release
)
Step: TypeAlias = Generator[Action, Any, T]
"""A part of the flow: a generator of actions with a result."""


class CloudReplyFacts(Protocol):
    """A cloud answer that fits the model's signature, and its cost. `server_s`: None if not reported."""

    @property
    def sent_bytes(self) -> int:
        """Size of the message."""

    @property
    def received_bytes(self) -> int:
        """Size of the answer."""

    @property
    def total_s(self) -> float:
        """Time from sending to answer."""

    @property
    def server_s(self) -> float | None:
        """The server's part of the time."""

    @property
    def is_first(self) -> bool:
        """Whether the time includes the handshakes of a new connection."""

    @property
    def is_degraded(self) -> bool:
        """Whether a gateway answered instead of the cloud."""

    @property
    def reason(self) -> Reason | None:
        """The gateway's reason, if it is a known one."""


@value_class
class CloudFailure:
    """No answer, with the reason; `detail` is the other side's text.

    `retry_after_s`: seconds until the cloud accepts requests again, if it refused this one and said so. None otherwise,
    and if requests go to another endpoint anyway. `is_unsent`: there was no connection, so nothing has left.
    """

    reason: Reason
    detail: str
    retry_after_s: float | None = None
    is_unsent: bool = False


@value_class
class MessageSent:
    """A message is on its way. `sent_bytes` is its true size; 0 if the call could not begin, and so ends at once.

    `frees_link`: if the call is cancelled, unsent data is dropped.
    """

    sent_bytes: int
    frees_link: bool = False


@value_class
class CallEnded:
    """A call has ended at `ended_s`, `elapsed_s` after it was sent.

    `is_blameless`: the request itself may be the cause, so the failure counts against no one. `has_others`: another
    endpoint could be asked.
    """

    call: str
    outcome: CloudReplyFacts | CloudFailure
    ended_s: float
    elapsed_s: float
    is_blameless: bool = False
    has_others: bool = False


class RouterPort(Protocol):
    """Decides and learns for the flow. No method blocks."""

    @property
    def state(self) -> RouterState:
        """The current state; immutable."""

    def decide(self, signals: Signals) -> Decision:
        """A decision that has already taken what it needs exclusively (probe slots, budgets)."""

    def turn(self, message: QueuedMessage) -> Turn:
        """When a message may leave, whether it is in the queue or not."""

    def observe(self, outcome: Outcome) -> None:
        """Learn from an outcome."""

    def ran(self, model: str, rows: int, duration_s: float) -> None:
        """Learn from a run of the device."""

    def settle(self, decision: Decision, sent_bytes: int | None, settled_bytes: int | None = None) -> None:
        """Correct the draws of a message once its size is known; None if none was sent. `settled_bytes`: the size that
        they were corrected to before."""

    def give_back(self, decision: Decision) -> None:
        """Return what a decision took that will not be acted on."""

    def acquire_hedge(self, decision: Decision) -> bool:
        """Whether a hedge may be sent for this decision now; it is then paid for."""

    def acquire_retry(self, decision: Decision) -> bool:
        """Whether the budgets allow one more message for this decision; it is then paid for."""
