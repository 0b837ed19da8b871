"""What the flow of a request asks its driver for, and what the driver tells it.

Each action says what the driver sends back for it; an `UpwellError` is given to `RequestFlow.fail` instead.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

from upwell.shared.routing.decide.state import Decision, Outcome, RouterState, Signals, SplitRoute
from upwell.shared.routing.decide.turn import Turn
from upwell.shared.routing.policy.settings import HardSettings
from upwell.shared.routing.reasons import Reason
from upwell.shared.routing.scheduling.send_queue import QueuedMessage
from upwell.shared.values import quick

T = TypeVar("T")
Rows: TypeAlias = tuple[int, ...]


@quick
@dataclass(frozen=True, slots=True)
class Admit:
    """Take the request on for the device. Gives the number of runs that go before it. Raises `Refused`."""

    decision: Decision


@quick
@dataclass(frozen=True, slots=True)
class RunEdge:
    """Run the model on the device for these rows. `is_owed`: it stands in for the cloud, so it is never refused.

    Gives the run's time in seconds. Raises as `EdgeModel.run` does.
    """

    rows: Rows
    deadline_s: float
    is_owed: bool


@dataclass(frozen=True, slots=True)
class RunHead:
    """Run the head of a split model for the rows of `decision`. Gives the run's time in seconds; raises likewise."""

    split_route: SplitRoute
    decision: Decision


@quick
@dataclass(frozen=True, slots=True)
class Score:
    """Measure how hard these rows are, which the device has answered. Gives a number for each; None if it cannot."""

    rows: Rows
    hard: HardSettings


@dataclass(frozen=True, slots=True)
class Encode:
    """Make the message with the rows of the attempt of that number. Gives its bytes. Raises `InvalidRequest`."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Send:
    """Send the message of an attempt as the call of that name, under the policy in force at this moment.

    `known` is what was learnt before this message: rules may look at the link, as it is without it. `apart_from` names
    a call that it should share neither endpoint nor connection with. Gives `MessageSent` or `CloudFailure`,
    the latter where the policy keeps the request on the device by now.
    """

    attempt: int
    call: str
    known: RouterState
    apart_from: str = ""


@dataclass(frozen=True, slots=True)
class JoinQueue:
    """Put a message into the queue before the link. From then on `Wait` ends early, too, where its turn may have come;
    what was learnt of its call takes it out."""

    message: QueuedMessage


@quick
@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until a call ends or the instant is reached, which may have passed. Gives a list of `CallEnded`."""

    until_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Cancel a call that is late. Gives its `CallEnded`."""

    call: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel a call whose answer nobody needs any more; that says nothing about the cloud."""

    call: str


@dataclass(frozen=True, slots=True)
class Reserve:
    """Keep a slot of the device for a run that may have to stand in for the cloud. Gives the instant it begins at."""

    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Release:
    """Give the slot back."""


Action: TypeAlias = (
    Admit | RunEdge | RunHead | Score | Encode | JoinQueue | Send | Wait | GiveUp | Cancel | Reserve | Release
)
Step: TypeAlias = Generator[Action, Any, T]
"""A part of the flow: a generator of actions with a result."""


class CloudReplyFacts(Protocol):
    """An answer of the cloud that fits the model's signature, and what it cost. `server_s`: None where not reported."""

    @property
    def sent_bytes(self) -> int:
        """Of the message."""

    @property
    def received_bytes(self) -> int:
        """Of the answer."""

    @property
    def total_s(self) -> float:
        """From sending to answer."""

    @property
    def server_s(self) -> float | None:
        """The server's part of it."""

    @property
    def is_first(self) -> bool:
        """Whether the time holds the handshakes of a new connection."""

    @property
    def is_degraded(self) -> bool:
        """Whether a gateway answered in the cloud's stead."""

    @property
    def reason(self) -> Reason | None:
        """The reason that a gateway gives, where it is one that we know."""


@dataclass(frozen=True)
class CloudFailure:
    """No answer, and why; `detail` is the other side's text.

    `retry_after_s`: where the cloud refused it and said when to come back, after so many seconds. None where it did not
    say, and where requests go to another endpoint anyway.
    """

    reason: Reason
    detail: str
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class MessageSent:
    """A message is on its way. `sent_bytes` is its true size; 0 where the call could not begin, and so ends at once.

    `frees_link`: if the call is given up, what has not left is dropped.
    """

    sent_bytes: int
    frees_link: bool = False


@dataclass(frozen=True, slots=True)
class CallEnded:
    """A call has ended at `ended_s`, `elapsed_s` after it was sent.

    `is_blameless`: the failure may be the request's own doing, so it speaks against nobody. `has_others`: another
    endpoint could be asked.
    """

    call: str
    outcome: CloudReplyFacts | CloudFailure
    ended_s: float
    elapsed_s: float
    is_blameless: bool = False
    has_others: bool = False


class RouterPort(Protocol):
    """Whoever decides and learns for the flow. No method waits."""

    @property
    def state(self) -> RouterState:
        """All that is known now; immutable."""

    def decide(self, signals: Signals) -> Decision:
        """A decision, with what it needs for itself (probe slots, budgets) already taken."""

    def turn(self, message: QueuedMessage) -> Turn:
        """When a message may leave, whether it waits in the queue by now or not."""

    def observe(self, outcome: Outcome) -> None:
        """Learn from an outcome."""

    def ran(self, model: str, rows: int, duration_s: float) -> None:
        """Learn from a run of the device."""

    def settle(self, decision: Decision, sent_bytes: int | None) -> None:
        """Correct what a message drew from budgets, once its size is known; None where none was sent."""

    def give_back(self, decision: Decision) -> None:
        """Return all that a decision took which nobody will act on."""

    def acquire_hedge(self, decision: Decision) -> bool:
        """Whether a second request may be sent for this decision now; it is paid for then."""

    def acquire_retry(self, decision: Decision) -> bool:
        """Whether the budgets allow one more message for this decision; it is paid for then."""
