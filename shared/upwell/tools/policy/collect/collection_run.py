"""The whole collection: device and cloud are asked about every item that is not yet in the log, once.

Failures are counted and reported. The log is written line by line, so that a collection can be continued.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from pydantic import ValidationError

from upwell.edge.models.edge_model import EdgeModel, EdgeRun, ServedModel
from upwell.edge.models.hardness_scorer import Scorer
from upwell.edge.observe.request_log import encode_line
from upwell.edge.runtimes.base import runtime_name
from upwell.shared.errors import ConfigError, ModelFailed, UpwellError
from upwell.shared.files import append_line, lock_file, open_log
from upwell.shared.oip.codec.converters import serialize_infer_request
from upwell.shared.oip.dataplane import InferRequest, InferResponse
from upwell.shared.oip.grpc.client.client import RemoteError, RemoteErrorKind
from upwell.shared.oip.open_client import Client
from upwell.shared.routing.policy.compiled_policy import CompiledPolicy, RequestFacts, Verdict
from upwell.shared.routing.policy.settings import HardSettings
from upwell.shared.routing.request_log_line import LogLine, QualityAnswer
from upwell.shared.signature.answer_agreement import Judge
from upwell.shared.signature.signature import UplinkEncoding
from upwell.shared.signature.uplink_pictures import Resizes, encode_for_uplink, shrink_for_uplink, with_uplink
from upwell.shared.tensors import Array
from upwell.tools.policy.collect.input_items import Item, read_item

ITEM = "item"
"""The tag with the item's name."""

CLOUD_TRUTH = MappingProxyType({"truth": "cloud"})
"""The additional tag of lines in which the cloud's answers count as correct."""

_START = b'{"t_s":'
"""The start of each of our lines: an incomplete last line of another file is never removed."""

ANSWER_S = 60.0
"""Time limit of the cloud; nothing waits for these answers."""

SILENT_LIMIT = 5
"""Number of items in a row without a cloud answer that ends a collection: the cloud is down, or the configuration is
wrong."""


class LogNotWritten(UpwellError):
    """The log cannot be written to disk."""


@dataclass(frozen=True)
class Former:
    """The former contents of a log: its items, its last instant, and one of its lines to compare with."""

    items: frozenset[str] = frozenset()
    last_s: float = 0.0
    line: LogLine | None = None


class LogFile:
    """An open log. `former` is what it held when it was opened."""

    def __init__(self, path: Path, file: int, former: Former) -> None:
        self.former = former
        self._path = path
        self._file = file

    def append(self, line: LogLine) -> None:
        """Write one line, atomically. Raises `LogNotWritten`."""
        try:
            append_line(self._file, encode_line(line))
        except OSError as error:
            raise LogNotWritten(f"{self._path}: cannot be written: {error.strerror}") from None


@contextmanager
def opened(path: Path) -> Iterator[LogFile]:
    """The log at `path`, created if missing, with an unfinished last line cut off. Raises `ConfigError`."""
    if path.exists() and not path.is_file():
        raise ConfigError.at(path, "not a file; expected a log to write or to continue", "--out")
    if path.exists():
        _read(path)  # another file is left as it is
    with ExitStack() as stack:
        with ConfigError.on_os_error(path, "cannot be written", "--out"):
            file = stack.enter_context(open_log(path))
        if not lock_file(file):
            raise ConfigError.at(path, "another command writes it; wait for it, or name another file", "--out")
        yield LogFile(path, file, _read(path))


def _read(path: Path) -> Former:
    """The contents of the log, without an unfinished last line. Raises `ConfigError` for another file."""
    items: set[str] = set()
    last_s, first = 0.0, None
    with ConfigError.on_os_error(path, "cannot be read", "--out"), path.open("rb") as file:
        for number, text in enumerate(file, 1):
            if not text.endswith(b"\n") and _START.startswith(text[: len(_START)]):
                break
            line = _parsed(path, number, text)
            first = first or line
            last_s = max(last_s, line.t_s)
            if ITEM in line.tags:
                items.add(line.tags[ITEM])
    return Former(frozenset(items), last_s, first)


def _parsed(path: Path, number: int, text: bytes) -> LogLine:
    try:
        return LogLine.model_validate_json(text)
    except ValidationError:
        raise ConfigError.at(
            path, "this is not a line of a request log; --out names a new file or a log to continue", line=number
        ) from None


@dataclass(frozen=True)
class CloudAsker:
    """The cloud's answer. `answer` is None if it was not asked, or gave nothing usable: then `problem` says why.
    `is_silent`: it was asked and is not there, or rejects us, whatever the item.
    """

    sent_bytes: int
    reply_bytes: int = 0
    answer: InferResponse | None = None
    problem: str = ""
    is_silent: bool = False


@dataclass(frozen=True)
class AskedCloud:
    """The cloud's side: its client, how its model resizes pictures, and further encodings to ask it about."""

    client: Client
    resizes: Resizes
    encodings: tuple[UplinkEncoding, ...] = ()


@dataclass(frozen=True)
class Asked:
    """A finished item: its line without a time, and the outcome on the cloud's side."""

    line: LogLine
    cloud: CloudAsker
    egress_rule: str


class Asker:
    """Asks both sides of one model.

    `labels` maps items to classes or objects; None takes the cloud's answers as right.
    """

    def __init__(
        self,
        model: ServedModel,
        cloud: AskedCloud,
        policy: CompiledPolicy,
        judge: Judge,
        labels: Mapping[str, int] | Mapping[str, Array] | None,
    ) -> None:
        assert model.edge is not None  # noqa: S101  collecting asks both sides
        self._model = model
        self._edge: EdgeModel = model.edge
        self._cloud = cloud
        self._policy = policy
        self._judge = judge
        self._labels = labels
        self._scorer = Scorer(model.edge.signature)
        self._runtime = runtime_name(model.edge.runtime)

    def warm_up(self, item: Item) -> None:
        """Run the device once and drop the result: the first run is no sample. Raises what `ask` raises."""
        self._edge.run(read_item(item, self._model), math.inf)

    def ask(self, item: Item, t_s: float) -> Asked:
        """Ask about one item, at `t_s` of the log. Raises `UpwellError` for an item that cannot be read or run."""
        inputs = read_item(item, self._model)
        run = self._edge.run(inputs, math.inf)
        encoded = encode_for_uplink(self._edge.signature, inputs, self._cloud.resizes)
        size_bytes = max(self._edge.signature.row_sizes_bytes(encoded))
        sent = shrink_for_uplink(self._edge.signature, encoded, self._cloud.resizes)
        verdict = self._policy.judge(RequestFacts(self._model.name, {ITEM: item.name}, size_bytes, time.time()))
        request = InferRequest(self._model.cloud_model, sent, id=uuid.uuid4().hex)
        cloud = self._ask_cloud(request, verdict)
        line = self._line(item, t_s, run, cloud, verdict.settings.hard or HardSettings())
        if max(self._edge.signature.row_sizes_bytes(sent)) < size_bytes:
            line = line.model_copy(update={"size_bytes": size_bytes, "up_bytes": cloud.sent_bytes})
        if self._cloud.encodings and cloud.answer is not None:
            line = line.model_copy(update={"qualities": self._at_qualities(inputs, verdict)})
        return Asked(line, cloud, verdict.egress_rule)

    def close(self) -> None:
        """End the call to the cloud in progress, if there is one; nothing can be asked after that."""
        self._cloud.client.close()

    def _at_qualities(self, inputs: Mapping[str, Array], verdict: Verdict) -> tuple[QualityAnswer, ...]:
        """How the cloud's answers about pictures of lower quality compare with its answers about the originals."""
        whole = self._ask_with(None, inputs, verdict)
        if whole.answer is None:
            return ()
        found = []
        for encoding in self._cloud.encodings:
            asked = self._ask_with(encoding, inputs, verdict)
            if asked.answer is None:
                return ()
            agrees = self._judge.agrees(asked.answer.outputs, whole.answer.outputs)
            found.append(QualityAnswer(
                quality=encoding.quality, up_bytes=asked.sent_bytes, whole_bytes=whole.sent_bytes, agrees=agrees
            ))  # fmt: skip
        return tuple(found)

    def _ask_with(self, encoding: UplinkEncoding | None, inputs: Mapping[str, Array], verdict: Verdict) -> CloudAsker:
        signature, resizes = with_uplink(self._edge.signature, encoding), self._cloud.resizes
        sent = shrink_for_uplink(signature, encode_for_uplink(signature, inputs, resizes), resizes)
        return self._ask_cloud(InferRequest(self._model.cloud_model, sent, id=uuid.uuid4().hex), verdict)

    def _ask_cloud(self, request: InferRequest, verdict: Verdict) -> CloudAsker:
        if verdict.egress_rule:  # what denies egress is measured on the device alone
            return CloudAsker(len(serialize_infer_request(request)))
        try:
            pending = self._cloud.client.infer_async(request, ANSWER_S)
        except RemoteError as error:
            return CloudAsker(len(serialize_infer_request(request)), problem=str(error), is_silent=True)
        try:
            response = pending.result()
            self._edge.check_cloud(response.outputs, 1)
            return CloudAsker(pending.sent_bytes, pending.received_bytes, response)
        except RemoteError as error:
            is_silent = error.kind is not RemoteErrorKind.INVALID_ARGUMENT
            return CloudAsker(pending.sent_bytes, problem=str(error), is_silent=is_silent)
        except ModelFailed as error:
            return CloudAsker(pending.sent_bytes, pending.received_bytes, problem=str(error))

    def _line(self, item: Item, t_s: float, run: EdgeRun, cloud: CloudAsker, hard: HardSettings) -> LogLine:
        outputs = run.outputs
        edge_correct, cloud_correct = self._correct(item, outputs, cloud.answer)
        return LogLine(
            t_s=t_s,
            model=self._model.name,
            edge_digest=self._edge.digest,
            edge_runtime=self._runtime,
            cloud_digest=_digest(cloud.answer),
            **self._scorer.logged(outputs, hard, 0, run.candidates),
            size_bytes=cloud.sent_bytes,
            reply_bytes=cloud.reply_bytes,
            edge_s=run.duration_s,
            cloud_s=_server_s(cloud.answer),
            hardness=self._scorer.score_all(outputs, hard, 1, run.candidates)[0],
            edge_correct=edge_correct,
            cloud_correct=cloud_correct,
            tags={ITEM: item.name} if self._labels is not None else {ITEM: item.name, **CLOUD_TRUTH},
        )

    def _correct(
        self, item: Item, edge: Mapping[str, Array], answer: InferResponse | None
    ) -> tuple[bool | None, bool | None]:
        cloud = answer.outputs if answer is not None else None
        if self._labels is not None:
            label = self._labels[item.name]
            return self._is_right(edge, label), None if cloud is None else self._is_right(cloud, label)
        return (None, None) if cloud is None else (self._judge.agrees(edge, cloud), True)

    def _is_right(self, outputs: Mapping[str, Array], label: int | Array) -> bool:
        return self._judge.is_label(outputs, label) if isinstance(label, int) else self._judge.has_found(outputs, label)


def _digest(answer: InferResponse | None) -> str:
    facts = answer.parameters if answer is not None else {}
    return str(facts.get("upwell.cloud_digest") or facts.get("upwell.edge_digest") or "")


def _server_s(answer: InferResponse | None) -> float | None:
    """The cloud's own time, None if it reports none, or an impossible one."""
    facts = answer.parameters if answer is not None else {}
    parts_ms = [facts.get(f"upwell.cloud_{part}_ms") for part in ("queue", "compute")]
    seconds = [part / 1e3 for part in parts_ms if isinstance(part, (int, float)) and not isinstance(part, bool)]
    total_s = sum(seconds)
    return total_s if len(seconds) == 2 and math.isfinite(total_s) and min(seconds) >= 0 else None


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
                self._finish()
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

    def _finish(self) -> None:
        """Write what is held, but for items that the cloud said nothing to: the next run asks about them again."""
        silent = [(item, asked) for item, asked in self._held if asked.cloud.is_silent]
        self._held = [one for one in self._held if not one[1].cloud.is_silent]
        self._release()
        for item, asked in silent:
            self.report.unanswered[item.name] = f"{asked.cloud.problem}; the same command asks again"

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
