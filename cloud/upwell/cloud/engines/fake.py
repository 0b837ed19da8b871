"""The official fake: an engine that tests control by events."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from upwell.cloud.engines.batch_checks_and_buckets import check_batch, zero_batch
from upwell.shared.errors import ModelFailed
from upwell.shared.tensors import Array, TensorSpec

X = TensorSpec("x", "FP32", (-1, 2))
Y = TensorSpec("y", "FP32", (-1, 2))


def _double(batch: Mapping[str, Array]) -> dict[str, Array]:
    return {"y": batch["x"] * 2}


class FakeEngine:
    """An engine that answers with a function (default `y = 2 x`), and can be held in the middle of a run.

    `batches` has the inputs of `run`, in the order of the calls; `started` is released once for each run that begins.
    After `hold()` every run waits for `let_go()`.
    """

    def __init__(
        self,
        answer: Callable[[Mapping[str, Array]], dict[str, Array]] = _double,
        inputs: tuple[TensorSpec, ...] = (X,),
        outputs: tuple[TensorSpec, ...] = (Y,),
        buckets: tuple[int, ...] = (),
        device: str = "cpu",
    ) -> None:
        self.version = "fake 1"
        self.device = device
        self.inputs = inputs
        self.outputs = outputs
        self.buckets = buckets
        self.batches: list[Mapping[str, Array]] = []
        self.started = threading.Semaphore(0)
        self._answer = answer
        self._open = threading.Event()
        self._open.set()
        self._closed = False

    def hold(self) -> None:
        """Make every run that begins from now on wait."""
        self._open.clear()

    def let_go(self) -> None:
        """Let the held runs finish, and later ones pass."""
        self._open.set()

    def run(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        """Answer with the function; see `Engine.run`."""
        check_batch(batch, self.inputs, self.buckets)
        if self._closed:
            raise ModelFailed("the model is closed")
        self.batches.append(batch)
        self.started.release()
        self._open.wait()
        return self._answer(batch)

    def warm_up(self, rows: int) -> None:
        """Answer zeros once, without an entry in `batches`; see `Engine.warm_up`."""
        batch = zero_batch(self.inputs, rows)
        if batch is not None:
            self._answer(batch)

    def close(self) -> None:
        """Refuse further runs."""
        self._closed = True
