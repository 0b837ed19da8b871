"""Threads that keep a system busy while a test does something to it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

Own = TypeVar("Own", bound="Repeating")


class Repeating:
    """Threads that do one thing again and again until the block ends; `errors` holds what they met.

    `doing` opens for each thread what it calls.
    """

    def __init__(self, doing: Callable[[], AbstractContextManager[Callable[[], None]]], threads: int) -> None:
        self.errors: list[BaseException] = []
        self._doing = doing
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._repeat, daemon=True) for _ in range(threads)]

    def __enter__(self: Own) -> Own:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _repeat(self) -> None:
        with self._doing() as do:
            while not self._stop.is_set():
                try:
                    do()
                except BaseException as error:  # noqa: BLE001  every one is shown at the end
                    self.errors.append(error)
