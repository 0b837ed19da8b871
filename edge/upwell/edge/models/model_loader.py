"""Loading and testing a model from the edge side of its configuration, until it can be served.

The ways to run it are tried in order (`upwell.edge.models.runtime_candidates`). Each is opened, run once, and must
answer the golden vectors; an accelerator without golden vectors must answer as the CPU does. What fails is skipped,
with the reason. Some accelerators compile a model for minutes; the CPU may serve meanwhile.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from upwell.edge.bundle.bundle import DESCRIPTION_NAME, GOLDEN_NAME, Bundle
from upwell.edge.bundle.output_tolerances import Tolerances
from upwell.edge.models.edge_model import CheckedBy, EdgeModel, LoadReport, ModelSource, RuntimeAttempt, State
from upwell.edge.models.first_run import first_run
from upwell.edge.models.model_config import EdgeSide
from upwell.edge.models.runtime_candidates import Candidate, ModelFiles, accelerated, files_of, is_there, on_cpu
from upwell.edge.runtimes.base import Runtime
from upwell.edge.runtimes.placement import AcceleratorNotUsable
from upwell.edge.runtimes.runtime_loader import load_runtime
from upwell.shared.errors import ConfigError, Problem, UpwellError
from upwell.shared.formats.model_digest import model_digest
from upwell.shared.formats.onnx.file import BadOnnxFile
from upwell.shared.platform.memory import resident_bytes
from upwell.shared.signature.processor import Processor
from upwell.shared.value_classes import value_class

if TYPE_CHECKING:
    from upwell.edge.bundle.golden import GoldenVectors
    from upwell.edge.runtimes.device_lock import DeviceLock
    from upwell.shared.routing.drift.drift_reference import DriftReference
    from upwell.shared.routing.policy.calibrations import Calibration
    from upwell.shared.signature.model_yaml import ModelDescription

COMPILED_NAME = "compiled"
"""The folder in `state_dir` for models compiled by accelerators."""

PATIENCE_S = 2.0
"""How long to wait for an accelerator before the CPU serves while it goes on compiling."""

LONGEST_COMPILE_S = 1800.0
"""How long a new version may take on an accelerator before that is skipped. The thread there cannot be ended."""

_Outcome = tuple[EdgeModel | None, Sequence[RuntimeAttempt]]
_log = logging.getLogger(__name__)


@value_class
class Loading:
    """A model that can be served now, and the one to serve once an accelerator is ready.

    `final` is None if `model` is final. Otherwise it gives the model on the accelerator or, if that failed, `model`
    itself with an updated report. It never fails. Cancelling it closes its result.
    """

    model: EdgeModel
    final: Future[EdgeModel] | None = None

    def close(self) -> None:
        """Close the model and any later one."""
        if self.final is not None and not self.final.cancel():
            self.final.result().close()
        self.model.close()


class _Left(Exception):
    """The reason for skipping a candidate."""


class Loader:
    """Loads one configured model on its accelerators or the CPU; for a single use.

    `name` is the model's name in the configuration. `bundle` was verified; without one the configured folder or file is
    loaded as it is. Files that the model names must lie in its bundle; for a bare file in its own folder, or in
    `within`. Without `state_dir` nothing is remembered between starts. A version that `is_new` first runs in another
    process on the CPU, so that one that hangs or crashes is skipped. Raises `ConfigError` if there is no model file, or
    if the description or golden vectors cannot be read.
    """

    def __init__(
        self,
        name: str,
        side: EdgeSide,
        *,
        bundle: Bundle | None = None,
        within: Path | None = None,
        state_dir: Path | None = None,
        is_new: bool = False,
    ) -> None:
        self.name = name
        self.side = side
        self._is_new = is_new
        self._key = f"models.{name}.edge"
        self._began_s = time.monotonic()
        self._files = files_of(side, bundle)
        self._state_dir = state_dir
        self._cache_dir = None if state_dir is None else state_dir / COMPILED_NAME
        described_by = self._files.description
        # Anything of that name counts as the description, even a folder or a broken link, so that it is reported.
        self._description = _description(described_by, within) if os.path.lexists(described_by) else None
        wanted = self._description.golden if self._description else None
        self._limits = Tolerances(wanted.tolerance, wanted.agree) if wanted else Tolerances()
        self._golden = _golden_vectors(wanted.file if wanted else None, self._files)
        self._calibrations: Sequence[Calibration] = ()
        self._reference: DriftReference | None = None
        if self._files.bundle is not None:
            from upwell.edge.bundle.bundle_calibrations import load_calibrations, load_reference

            self._calibrations = load_calibrations(self._files.bundle.folder)
            self._reference = load_reference(self._files.bundle.folder)
        self._errors: dict[RuntimeAttempt, ConfigError] = {}
        if side.file is not None:
            untested = "" if self._golden else "tests or "
            _log.warning("%s is a bare file without a bundle: nothing %sverifies it", side.file, untested)
            others, own = side.file.parent / DESCRIPTION_NAME, self._files.description
            if others != own and others.exists() and not own.exists():
                _log.warning("%s is ignored: the description of this model file must be named %s", others, own.name)

    def load(self) -> EdgeModel:
        """The model, once any configured accelerator is ready or was skipped.

        Raises `ConfigError` with every attempt if it cannot be run as required.
        """
        if not self.side.wanted_accelerators:
            return self._on_cpu("ready", [])
        outcome = self._in_background()
        try:
            edge, attempts = outcome.result(LONGEST_COMPILE_S)
        except FutureTimeout:
            outcome.add_done_callback(_drop)
            why = f"is not ready after {LONGEST_COMPILE_S:g} s"
            edge, attempts = None, [RuntimeAttempt("the accelerator", why)]
        return edge or self._without_accelerator(attempts)

    def start(self, patience_s: float = PATIENCE_S) -> Loading:
        """The model as soon as it can be served.

        An accelerator that is not ready within `patience_s` continues in a daemon thread, which does not keep the
        process alive; one with `require: must`, or whose model cannot run on the CPU, is waited for. Raises as `load`
        does.
        """
        if not self.side.wanted_accelerators:
            return Loading(self._on_cpu("ready", []))
        outcome = self._in_background()
        try:
            edge, attempts = outcome.result(None if self._is_a_must else patience_s)
        except FutureTimeout:
            return self._meanwhile(outcome)
        return Loading(edge or self._without_accelerator(attempts))

    @property
    def _is_a_must(self) -> bool:
        """Whether the accelerator is required."""
        return any(one.require == "must" for one in self.side.wanted_accelerators)

    def _without_accelerator(self, attempts: Sequence[RuntimeAttempt]) -> EdgeModel:
        """The model after every accelerator was skipped."""
        if self._is_a_must:
            raise self._failure(attempts)
        return self._on_cpu("fallback", attempts)

    def _in_background(self) -> Future[_Outcome]:
        outcome: Future[_Outcome] = Future()

        def load() -> None:
            try:
                found = self._first(accelerated(self.side, self._files.models), "ready", [])
            except Exception as error:  # noqa: BLE001 (whoever waits must learn how it ended)
                _log.exception("model %s: loading it on an accelerator failed unexpectedly", self.name)
                found = None, [RuntimeAttempt("the accelerator", f"internal error: {error!r}")]
            outcome.set_result(found)

        threading.Thread(target=load, name=f"load-{self.name}", daemon=True).start()
        return outcome

    def _meanwhile(self, outcome: Future[_Outcome]) -> Loading:
        try:
            model = self._on_cpu("compiling", [])
        except ConfigError as error:
            edge, attempts = outcome.result()
            if edge is None:
                raise ConfigError([*self._failure(attempts).problems, *error.problems]) from None
            return Loading(edge)
        final: Future[EdgeModel] = Future()

        def settle(outcome: Future[_Outcome]) -> None:
            edge, attempts = outcome.result()
            if not final.set_running_or_notify_cancel():
                if edge is not None:
                    edge.close()
                return
            if edge is None:
                model.report = replace(model.report, state="fallback", attempts=[*attempts, *model.report.attempts])
            final.set_result(edge or model)

        outcome.add_done_callback(settle)
        return Loading(model, final)

    def _on_cpu(self, state: State, before: Sequence[RuntimeAttempt]) -> EdgeModel:
        """The model on the CPU, reported as in `state` after the attempts `before`.

        Raises `ConfigError` with every attempt if it runs nowhere.
        """
        edge, attempts = self._first(on_cpu(self.side, self._files.models), state, before)
        if edge is None:
            raise self._failure(attempts)
        return edge

    def _failure(self, attempts: Sequence[RuntimeAttempt]) -> ConfigError:
        """The error if every attempt failed, with all problems of each, and their positions in files."""
        if len(attempts) == 1 and attempts[0] in self._errors:
            return self._errors[attempts[0]]
        problems: list[Problem] = []
        for one in attempts:
            plain = Problem(None, None, None, self._key, one.reason)
            found = self._errors[one].problems if one in self._errors else (plain,)
            problems += [replace(problem, message=f"{one.what}: {problem.message}") for problem in found]
        return ConfigError(problems)

    def _first(self, candidates: Iterable[Candidate], state: State, before: Sequence[RuntimeAttempt]) -> _Outcome:
        attempts = [*before]
        for candidate in candidates:
            try:
                return self._load(candidate, state, attempts), attempts
            except (_Left, UpwellError, AcceleratorNotUsable, BadOnnxFile, OSError) as error:
                attempts.append(RuntimeAttempt(str(candidate), str(error)))
                if isinstance(error, ConfigError):
                    self._errors[attempts[-1]] = error
                _log.warning("model %s: %s is not used: %s", self.name, candidate, error)
        return None, attempts

    def _load(self, candidate: Candidate, state: State, before: Sequence[RuntimeAttempt]) -> EdgeModel:
        wanted = candidate.accelerator
        if wanted is None and self._is_new:
            from upwell.edge.runtimes.probe_process import TIMEOUT_S, try_on_cpu

            try_on_cpu(candidate.path, candidate.options, TIMEOUT_S)
        if wanted is None or wanted.library is None:
            return self._open(candidate, state, before)
        from upwell.edge.runtimes.probe_process import ProbeSubject, enter, survived

        version = candidate.package_version()
        subject = ProbeSubject(candidate.path, candidate.options, wanted, version, self._cache_dir)
        lock = enter(subject, self._state_dir)
        try:
            return self._open(candidate, state, before, lock)
        except BaseException:
            lock.release()
            raise
        finally:
            survived(subject, self._state_dir)

    def _open(
        self, candidate: Candidate, state: State, before: Sequence[RuntimeAttempt], lock: DeviceLock | None = None
    ) -> EdgeModel:
        memory_bytes = resident_bytes()
        runtime = load_runtime(candidate.path, candidate.options, candidate.accelerator, cache_dir=self._cache_dir)
        try:
            batch = candidate.options.batch
            processor = self._processor(runtime, batch)
            warm_up_s = self._first_run_s(runtime, processor)
            checked_by = self._test(candidate, processor, runtime)
        except BaseException:
            runtime.close()
            raise
        grown_bytes = max(0, resident_bytes() - memory_bytes)
        load_s = time.monotonic() - self._began_s
        return EdgeModel(
            runtime,
            processor,
            ModelSource(model_digest(candidate.path), self._files.bundle, self._calibrations, self._reference),
            report=LoadReport(state, checked_by, tuple(before), load_s, warm_up_s, grown_bytes),
            exits=self.side.exits,
            device_lock=lock,
        )

    def _processor(self, runtime: Runtime, batch: int | None) -> Processor:
        """The pre- and post-processing. Pictures are decoded at full size if the golden vectors require it."""
        processor = Processor(self._description, runtime.inputs, runtime.outputs, runtime.name, batch)
        golden, description = self._golden, self._description
        if golden is None or description is None or not any(one.dtype.hasobject for one in golden.inputs.values()):
            return processor
        from upwell.edge.bundle.golden import check_golden

        exact = Processor(description.exactly(), runtime.inputs, runtime.outputs, runtime.name, batch)
        if check_golden(processor, runtime, golden, self._limits).passed:
            return processor
        if check_golden(exact, runtime, golden, self._limits).passed:
            _log.info("model %s: pictures are decoded at full size, as in its golden vectors", self.name)
            return exact
        return processor

    def _first_run_s(self, runtime: Runtime, processor: Processor) -> float:
        """Seconds of a first run on zeros, which pays for lazy initialization. Raises `ConfigError` if it fails."""
        started_s = time.monotonic()
        try:
            first_run(runtime, processor)
        except UpwellError as error:
            raise ConfigError.at(None, f"the model fails on a run with zeros: {error}", self._key) from None
        return time.monotonic() - started_s

    def _test(self, candidate: Candidate, processor: Processor, runtime: Runtime) -> CheckedBy:
        """How the model's answers were checked. Raises `_Left` if they are wrong."""
        checked_by: CheckedBy = "nothing"
        wrong = ""
        if self._golden is not None:
            from upwell.edge.bundle.golden import check_golden

            checked_by = "golden vectors"
            verdict = check_golden(processor, runtime, self._golden, self._limits)
            wrong = "" if verdict.passed else f"it answers the golden vectors wrongly: {verdict.text}"
        elif candidate.accelerator is not None:
            from upwell.edge.models.self_test import check_with_cpu

            checked_by = "the CPU's answers"
            cpu = load_runtime(candidate.path, candidate.options)
            try:
                verdict = check_with_cpu(processor, runtime, cpu, self._limits)
            finally:
                cpu.close()
            wrong = "" if verdict.passed else f"its answers differ from the CPU's: {verdict.text}"
        if candidate.accelerator is not None:
            placement = runtime.placement
            if placement.refused:  # the CPU answered, so nothing is known of the accelerator's answers
                raise _Left(f"{placement.reason}; its answers could not be checked: write `batch: 1`")
            if not placement.nodes_on_accelerator:
                raise _Left(placement.reason)
        else:
            wrong = self._with_saturation(candidate, wrong)
        if wrong:
            raise _Left(wrong)
        return checked_by

    def _with_saturation(self, candidate: Candidate, wrong: str) -> str:
        """`wrong` with the known cause of wrong answers on the CPU; if nothing is wrong, that cause is logged."""
        if candidate.runtime != "onnx":
            return wrong
        from upwell.edge.runtimes.onnx.int8_saturation import saturation

        saturates = saturation(candidate.path)
        if saturates and not wrong:
            _log.warning("model %s: %s", self.name, saturates)
        return "; ".join(filter(None, (wrong, wrong and saturates)))


def _drop(outcome: Future[_Outcome]) -> None:
    """Close a result that nobody waits for."""
    edge, _ = outcome.result()
    if edge is not None:
        edge.close()


def _description(path: Path, within: Path | None) -> ModelDescription:
    from upwell.shared.signature.model_yaml import load_description

    return load_description(path, within)


def _golden_vectors(path: Path | None, files: ModelFiles) -> GoldenVectors | None:
    """The golden vectors at `path`, which the description names, or those in the bundle. Raises `ConfigError`."""
    if path is None and files.bundle is not None and is_there(files.bundle.folder, GOLDEN_NAME):
        path = files.bundle.folder / GOLDEN_NAME
    if path is None:
        return None
    from upwell.edge.bundle.golden import read_golden

    return read_golden(path)
