"""What is closed at the end of a `with` block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TypeVar

T = TypeVar("T", bound="Closing")


class Closing(ABC):
    """A context manager that is itself what the block uses, and that the end of the block closes."""

    @abstractmethod
    def close(self) -> None:
        """Give back what it holds. Calling it twice is harmless."""

    def __enter__(self: T) -> T:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
