"""The whole collection: every item that is not yet in the log, once, with failures counted and reported."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal

from upwell.edge.models.edge_model import EdgeModel
from upwell.edge.runtimes.base import runtime_name
from upwell.shared.errors import ConfigError, UpwellError
from upwell.shared.routing.log_line import LogLine
from upwell.tools.policy.collect.collection_log import CLOUD_TRUTH, LogFile
from upwell.tools.policy.collect.input_items import Item
from upwell.tools.policy.collect.paired_answers import Asked, Asker

SILENT_LIMIT = 5
"""Number of items in a row without a cloud answer that ends a collection: the cloud is down, or the configuration is
wrong."""


class CloudSilent(UpwellError):
    """The cloud does not answer at all, so going on is pointless."""


@dataclass(kw_only=True)
class CollectionReport:
    """The outcome of the items so far, as `--json` prints it; items by name with what happened to them.

    The accuracies are None if no line tells, and until all items are done.
    """

    out: str
    truth: Literal["labels", "cloud"]
    collected: int = 0
    already_there: int
    unlabelled: int
    skipped: dict[str, str] = field(default_factory=dict)
    unanswered: dict[str, str] = field(default_factory=dict)
    kept_by_egress_rule: dict[str, str] = field(default_factory=dict)
    edge_accuracy: float | None = None
    cloud_accuracy: float | None = None


def check_same(former: LogLine | None, edge: EdgeModel, model: str, *, with_labels: bool) -> None:
    """Raise `ConfigError` if an existing log is about another model: a log of two models is useless."""
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
                None, f"the log there has {before!r} as the {what}, but this is {now!r}; name another file", "--out"
            )


class Collection:
    """Asks about items one after the other and writes their lines. `report` counts them, even if Ctrl-C ends it."""

    def __init__(self, asker: Asker, log: LogFile, report: CollectionReport) -> None:
        self.report = report
        self._asker = asker
        self._log = log
        self._edge_correct: list[bool] = []
        self._cloud_correct: list[bool] = []
        self._is_warm = False
        self._held: list[tuple[Item, Asked]] = []

    def run(self, items: Sequence[Item], advance: Callable[[], None]) -> None:
        """Collect the items, calling `advance` after each. Raises `CloudSilent` and `LogNotWritten`."""
        began_s = time.monotonic() - self._log.former.last_s
        # An interrupt in the middle of starting a call leaves a gRPC channel that never closes. So calls are made in
        # a thread, which interrupts do not reach.
        with ThreadPoolExecutor(1) as worker:
            try:
                for item in items:
                    self._take(item, worker.submit(self._ask, item, began_s).result())
                    advance()
                self._release()
            except BaseException:
                self._asker.close()  # ends the call in progress, for which the worker waits
                raise
        self.report.edge_accuracy = _accuracy(self._edge_correct)
        self.report.cloud_accuracy = _accuracy(self._cloud_correct)

    def _ask(self, item: Item, began_s: float) -> Asked | None:
        try:
            if not self._is_warm:
                self._asker.warm_up(item)
                self._is_warm = True
            return self._asker.ask(item, time.monotonic() - began_s)
        except UpwellError as error:
            self.report.skipped[item.name] = str(error)
            return None

    def _take(self, item: Item, asked: Asked | None) -> None:
        """Write the line, but hold it back while the cloud is silent: if it stays so, the items are asked about
        again.
        """
        if asked is None:
            return
        self._held.append((item, asked))
        silent = sum(held.cloud.is_silent for _, held in self._held)
        if silent == SILENT_LIMIT:
            raise CloudSilent(
                f"the cloud did not answer {SILENT_LIMIT} items in a row; they are left for later (the same "
                f"command continues with them): {asked.cloud.problem}"
            )
        was_heard = not asked.cloud.is_silent and not asked.egress_rule
        if was_heard or not silent:
            self._release()

    def _release(self) -> None:
        while self._held:
            item, asked = self._held[0]
            self._log.append(asked.line)
            del self._held[0]
            self.report.collected += 1
            if asked.line.edge_correct is not None:
                self._edge_correct.append(asked.line.edge_correct)
            if asked.line.cloud_correct is not None:
                self._cloud_correct.append(asked.line.cloud_correct)
            if asked.cloud.problem:
                self.report.unanswered[item.name] = asked.cloud.problem
            if asked.egress_rule:
                self.report.kept_by_egress_rule[item.name] = asked.egress_rule


def _accuracy(correct: Sequence[bool]) -> float | None:
    return sum(correct) / len(correct) if correct else None
