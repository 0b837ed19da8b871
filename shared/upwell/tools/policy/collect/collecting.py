"""The whole of a collection: every item that is not in the log yet, once, with what went wrong counted and told."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal

from upwell.edge.models.edge_model import EdgeModel
from upwell.edge.runtimes.base import runtime_name
from upwell.shared.errors import ConfigError, UpwellError
from upwell.shared.routing.log import LogLine
from upwell.tools.policy.collect.asking import Asked, Asker
from upwell.tools.policy.collect.items import Item
from upwell.tools.policy.collect.log_file import CLOUD_TRUTH, LogFile

SILENT_LIMIT = 5
"""So many items in a row without an answer of the cloud end a collection: it is down, or the configuration is wrong."""


class CloudSilent(UpwellError):
    """The cloud does not answer at all; nothing is learnt by going on."""


@dataclass(frozen=True)
class CollectionReport:
    """The outcome as `--json` prints it; items by name with what happened to them. Accuracies are None where nobody
    knows of any line."""

    out: str
    truth: Literal["labels", "cloud"]
    collected: int
    already_there: int
    unlabelled: int
    skipped: Mapping[str, str]
    unanswered: Mapping[str, str]
    kept_by_egress_rule: Mapping[str, str]
    edge_accuracy: float | None
    cloud_accuracy: float | None


@dataclass
class CollectionTally:
    """What became of the items so far. The `*_right` count the lines that know, which `*_judged` counts."""

    collected: int = 0
    skipped: dict[str, str] = field(default_factory=dict)
    unanswered: dict[str, str] = field(default_factory=dict)
    kept_here: dict[str, str] = field(default_factory=dict)
    edge_judged: int = 0
    edge_right: int = 0
    cloud_judged: int = 0
    cloud_right: int = 0

    def add(self, line: LogLine) -> None:
        """Count a line that was written."""
        self.collected += 1
        self.edge_judged += line.edge_correct is not None
        self.edge_right += line.edge_correct is True
        self.cloud_judged += line.cloud_correct is not None
        self.cloud_right += line.cloud_correct is True


def check_same(former: LogLine | None, edge: EdgeModel, model: str, *, with_labels: bool) -> None:
    """Raise `ConfigError` where a log to go on with is about something else: a log of two models is of no use."""
    if former is None:
        return
    truths = ("labels", "the cloud")
    was_by_cloud = CLOUD_TRUTH.items() <= former.tags.items()
    for what, before, now in (
        ("model", former.model, model),
        ("edge model's digest", former.edge_digest, edge.digest),
        ("runtime", former.edge_runtime, runtime_name(edge.runtime)),
        ("truth", truths[was_by_cloud], truths[not with_labels]),
    ):
        if before != now:
            raise ConfigError.at(
                None, f"the log there has {before!r} as the {what}, and this is {now!r}; name another file", "--out"
            )


class Collection:
    """Asks for items one after the other and writes their lines. `tally` is right at any moment, also after Ctrl-C."""

    def __init__(self, asker: Asker, log: LogFile) -> None:
        self.tally = CollectionTally()
        self._asker = asker
        self._log = log
        self._is_warm = False
        self._held: list[tuple[Item, Asked]] = []

    def run(self, items: Sequence[Item], advance: Callable[[], None]) -> None:
        """Collect the items, calling `advance` after each. Raises `CloudSilent` and `LogNotWritten`."""
        began_s = time.monotonic() - self._log.former.last_s
        # An interrupt that tears the beginning of a call in two leaves a gRPC channel that never closes. So calls are
        # made in a thread that no interrupt reaches.
        with ThreadPoolExecutor(1) as worker:
            try:
                for item in items:
                    self._take(item, worker.submit(self._ask, item, began_s).result())
                    advance()
                self._release()
            except BaseException:
                self._asker.close()  # ends the call under way, for which the worker is waited for
                raise

    def _ask(self, item: Item, began_s: float) -> Asked | None:
        try:
            if not self._is_warm:
                self._asker.warm_up(item)
                self._is_warm = True
            return self._asker.ask(item, time.monotonic() - began_s)
        except UpwellError as error:
            self.tally.skipped[item.name] = str(error)
            return None

    def _take(self, item: Item, asked: Asked | None) -> None:
        """Write the line, but hold it while the cloud is silent: if it stays so, the items are to be asked again."""
        if asked is None:
            return
        self._held.append((item, asked))
        silent = sum(held.cloud.is_silent for _, held in self._held)
        if silent == SILENT_LIMIT:
            raise CloudSilent(
                f"the cloud did not answer {SILENT_LIMIT} items in a row, which are left for another time (the same "
                f"command goes on with them): {asked.cloud.problem}"
            )
        was_heard = not asked.cloud.is_silent and not asked.egress_rule
        if was_heard or not silent:
            self._release()

    def _release(self) -> None:
        while self._held:
            item, asked = self._held[0]
            self._log.append(asked.line)
            del self._held[0]
            self.tally.add(asked.line)
            if asked.cloud.problem:
                self.tally.unanswered[item.name] = asked.cloud.problem
            if asked.egress_rule:
                self.tally.kept_here[item.name] = asked.egress_rule


def report_of(tally: CollectionTally, *, before: int, unlabelled: int, out: str, with_labels: bool) -> CollectionReport:
    """The outcome of a collection; `before` items were in the log when it began."""
    return CollectionReport(
        out=out,
        truth="labels" if with_labels else "cloud",
        collected=tally.collected,
        already_there=before,
        unlabelled=unlabelled,
        skipped=tally.skipped,
        unanswered=tally.unanswered,
        kept_by_egress_rule=tally.kept_here,
        edge_accuracy=tally.edge_right / tally.edge_judged if tally.edge_judged else None,
        cloud_accuracy=tally.cloud_right / tally.cloud_judged if tally.cloud_judged else None,
    )
