"""One iterator over several epochs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

__all__ = ["CyclingIterator"]

T = TypeVar("T")


class CyclingIterator(Iterator[T]):
    """Yields all of `generator_fn(epoch)` for one epoch after the other, below `n`.

    The epoch of `start_epoch` is begun at once, and yielded whatever `n` is; each other one is
    begun when the one before it is used up.
    """

    def __init__(
        self, n: int, generator_fn: Callable[[int], Iterable[T]], start_epoch: int = 0
    ) -> None:
        self._n = n
        self._epoch = start_epoch
        self._generator_fn = generator_fn
        self._items = iter(generator_fn(start_epoch))

    def __next__(self) -> T:
        while True:
            try:
                return next(self._items)
            except StopIteration:
                if self._epoch >= self._n - 1:
                    raise
            self._epoch += 1
            self._items = iter(self._generator_fn(self._epoch))
