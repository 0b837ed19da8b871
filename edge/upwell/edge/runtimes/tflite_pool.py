"""Interpreters of one model that take turns."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from upwell.edge.runtimes.tflite_interpreter import OpenModel


class Slot:
    """A place for one interpreter; None where it has to be opened anew. Who took it has it alone."""

    def __init__(self, model: OpenModel | None) -> None:
        self.model = model


class Pool:
    """Hands out slots. The one given back last goes out first, since its memory is still in the caches."""

    def __init__(self, models: Iterable[OpenModel]) -> None:
        self._free = [Slot(model) for model in models]
        self._closed = False
        self._change = threading.Condition(threading.Lock())

    def take(self) -> Slot | None:
        """A free slot, after waiting for one where all are in use; None once the pool is closed."""
        with self._change:
            while not self._free and not self._closed:
                self._change.wait()
            return None if self._closed else self._free.pop()

    def give(self, slot: Slot) -> None:
        """Give a slot back."""
        with self._change:
            if not self._closed:
                self._free.append(slot)
                self._change.notify()

    def drop(self) -> None:
        """Forget the interpreters of all free slots, so that they are opened anew."""
        with self._change:
            for slot in self._free:
                slot.model = None

    def close(self) -> None:
        """Free every interpreter: those in use when they are given back."""
        with self._change:
            self._closed = True
            self._free.clear()
            self._change.notify_all()
