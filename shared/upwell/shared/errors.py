"""Every error that Upwell raises on purpose, as one tree.

UpwellError
├── InvalidRequest      the caller sent a wrong name, shape, dtype or an unreadable message
│   └── TooLarge          fleet.opamp.opamp_endpoint
├── ModelNotFound       no model of that name or version
├── Refused             admission, a full queue or a limit said no; trying later or smaller may work
│   └── DatabaseUnavailable fleet.errors
├── Superseded          a newer request of the same source took its place before it had cost anything
├── NoAllowedRoute      the policy leaves no route for this request
├── DeadlineExceeded    the time is up, or nothing could answer in the time that is left
├── Unavailable         not serving now: draining, or not loaded yet
├── NotOffered          a part of the protocol that is not offered here; it says what is
├── Unauthenticated     no token, or a wrong one
├── NotAllowed          the operator has not allowed this to callers
├── NotLoaded           a model could not be loaded as asked; what was in force stays
├── CallerLeft          the caller cancelled; nobody reads the answer
├── ModelFailed         the model's runtime or engine failed on a valid request
│   ├── NotFinite         edge.models.edge_model
│   ├── Flawed            edge.models.trial_and_rollback
│   ├── AcceleratorFailed edge.runtimes.placement
│   └── DeviceLost        cloud.engines.base
├── CloudFailed         the cloud did not give a usable answer and the policy asks for an error
├── ConfigError         a file that a person wrote is wrong; carries every problem found
│   ├── BundleRefused     edge.bundle.bundle: a bundle is not used, for a reason that has a name
│   └── ExtraMissing      a package is not installed; names the extra that brings it
└── of one part alone, and there
    ├── FetchFailed       edge.updates.sources.base: a source of bundles cannot be reached, or lacks what was asked for
    │   └── NotThere      edge.updates.releases.repository_transport
    ├── CannotGoBack      edge.updates.model_versions.rollback_by_hand
    ├── EgressForbidden   edge.uplink.egress
    ├── UnknownRequest    edge.observe.flight_recorder
    ├── SpoolUnavailable  edge.spool.spooled_request
    ├── Later             edge.spool.spooled_request
    ├── CaseAway          edge.case_collection.case_delivery
    ├── CaseRefused       edge.case_collection.case_delivery
    ├── CaseLost          tools.cases.case_source
    ├── SourceEnded       pipelines.sources.base
    ├── SinkUnavailable   pipelines.sinks.base
    ├── Poisonous         pipelines.sinks.base
    ├── OutboxUnavailable pipelines.sinks.outbox_database
    ├── WorkersFailed     cloud.workers.supervisor
    ├── NotFound          fleet.errors
    ├── Conflict          fleet.errors
    ├── NoPlan            shared.partition.planner
    ├── Rejected          shared.oip.http.replies
    ├── RemoteError       shared.oip.grpc.client.client
    ├── Disagreement      tools.bundle.runnable_variants
    ├── CloudSilent       tools.policy.collect.collection_run
    ├── LogNotWritten     tools.policy.collect.collection_run
    ├── CannotCollect     tools.wheelhouse.cli
    ├── CallFailed        tools.fleet.fleet_client
    └── ServiceNotStarted tools.demo.demonstration

Core errors know no transport: `upwell.shared.oip.error_statuses` maps each to a gRPC status.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from upwell.shared.value_classes import value_class

EXIT_FAILED = 1
"""The exit code of a command whose check failed; 2 means wrong use."""


class UpwellError(Exception):
    """Root of the tree. `str(error)` is one sentence that is safe to show to the caller."""


class InvalidRequest(UpwellError):
    """A wrong name, shape or dtype, a missing input, or a message that cannot be read."""


class ModelNotFound(UpwellError):
    """The server has no model of that name or version."""

    @classmethod
    def unknown(cls, model: str, there: Iterable[str] | None = None) -> ModelNotFound:
        """For a name that no model has; `there` are the existing names, if the caller may know them. It begins as
        Triton's message does, since Triton's clients look for these words.
        """
        others = "" if there is None else f"; available: {', '.join(sorted(there)) or 'none'}"
        return cls(f"Request for unknown model: no model {model!r} here{others}")


class Refused(UpwellError):
    """Admission, a full queue or a size limit refused the request before any work was done.

    `retry_after_s`: seconds after which a retry may succeed; None if unknown.
    """

    def __init__(self, text: str, *, retry_after_s: float | None = None) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(text)


class Superseded(UpwellError):
    """A newer request of the same source replaced this one while it was still waiting."""


class NoAllowedRoute(UpwellError):
    """The policy leaves no route, for instance with `egress: deny` for a model without an edge side."""


class DeadlineExceeded(UpwellError):
    """The deadline passed before there was an answer."""


class Unavailable(UpwellError):
    """The server is draining, or the model is not ready."""


class NotOffered(UpwellError):
    """The caller asked for a part of the protocol that is not offered here; the text says what is."""


class Unauthenticated(UpwellError):
    """The call carried no token, or an unknown one."""


class NotAllowed(UpwellError):
    """The caller is known, but the operator has not allowed what it asked for."""


class NotLoaded(UpwellError):
    """A model could not be loaded as asked: its files are missing or wrong. The former version stays in force."""


class CallerLeft(UpwellError):
    """The caller cancelled the call; the work was dropped."""


class ModelFailed(UpwellError):
    """The runtime or engine failed on a valid request."""


class CloudFailed(UpwellError):
    """The cloud gave no usable answer, and the policy allows no edge answer instead."""


def shortened(text: str, most: int) -> str:
    """`text`, cut to at most `most` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def printable(text: object) -> str:
    """The text without control characters: it comes from a file, a caller or a server, and a terminal would obey
    them.
    """
    return "".join(one if one.isprintable() else "\ufffd" for one in str(text))


@value_class
class Problem:
    """One problem in a file: where it is, what is wrong, and what would be right."""

    path: Path | None
    line: int | None
    column: int | None
    key: str
    message: str

    def __str__(self) -> str:
        """`file:line:column: key: message`, without the parts that are unknown."""
        where = ":".join(str(part) for part in (self.path, self.line, self.column) if part is not None)
        return ": ".join(part for part in (where, self.key, self.message) if part)

    def document(self) -> dict[str, object]:
        """The problem for JSON, without its file."""
        return {"line": self.line, "column": self.column, "key": self.key, "message": self.message}


_MAX_PROBLEM_CHARACTERS = 4000
_MAX_PROBLEMS_SHOWN = 100


class ConfigError(UpwellError):
    """A file written by a person is wrong. `problems` holds the problems found, in file order; the text is bounded.

    `unlisted` counts those found beside them, which were not put into words.
    """

    def __init__(self, problems: Sequence[Problem], unlisted: int = 0) -> None:
        self.problems = tuple(problems)
        lines = [shortened(str(problem), _MAX_PROBLEM_CHARACTERS) for problem in self.problems[:_MAX_PROBLEMS_SHOWN]]
        others = len(self.problems) + unlisted - len(lines)
        super().__init__("\n".join([*lines, f"and {others} more"] if others else lines))

    @classmethod
    def at(
        cls, path: Path | None, message: str, key: str = "", line: int | None = None, column: int | None = None
    ) -> ConfigError:
        """An error with a single problem."""
        return cls([Problem(path, line, column, key, message)])

    @staticmethod
    @contextlib.contextmanager
    def on_os_error(path: Path | None, what: str, key: str = "") -> Iterator[None]:
        """Raise one for an `OSError` in the block: `what` says in a few words what failed, the system why."""
        try:
            yield
        except OSError as error:
            raise ConfigError.at(path, f"{what}: {error.strerror or error}", key) from None


class ExtraMissing(ConfigError):
    """A package is not installed; the message names the extra that brings it."""

    @staticmethod
    @contextlib.contextmanager
    def on_import(extra: str, what: str, key: str = "", path: Path | None = None) -> Iterator[None]:
        """Raise one for an import in the block that lacks a package, or finds a broken one, unless it is our own.

        `PACKAGE` in `what` stands for its name.
        """
        try:
            yield
        except ImportError as error:
            package = (error.name or "a package").partition(".")[0]
            if package == "upwell":
                raise
            broken = "" if isinstance(error, ModuleNotFoundError) else f" ({error})"
            text = f"{what.replace('PACKAGE', package)}{broken}: pip install 'upwell[{extra}]'"
            raise ExtraMissing([Problem(path, None, None, key, text)]) from None
