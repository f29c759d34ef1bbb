"""vLLM's builder of batch updates, and its collection of processors; for processors' own tests and wrappers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from fastdeploy_lp.logits_processor.vllm_v1 import AddedRequest, BatchUpdate, MovedRequest, RemovedRequest


class BatchUpdateBuilder:
    """Collects changes of a batch until `get_and_reset` makes an update of them."""

    def __init__(
        self,
        removed: list[RemovedRequest] | None = None,
        added: list[AddedRequest] | None = None,
        moved: list[MovedRequest] | None = None,
    ) -> None:
        self._removed = list(removed or [])
        self._removed_was_read = False
        self.added: list[AddedRequest] = list(added or [])
        self.moved: list[MovedRequest] = list(moved or [])
        self.batch_changed = False

    @property
    def removed(self) -> list[RemovedRequest]:
        """The removed rows, the highest first; no further one can be removed before the next update."""
        self._removed_was_read = True
        self._removed.sort(reverse=True)
        return self._removed

    def removed_append(self, index: int) -> None:
        """A row's request has left; raises RuntimeError once `removed` was read."""
        if self._removed_was_read:
            raise RuntimeError(f"row {index} cannot be removed: the removed rows of this step were read already")
        self._removed.append(index)
        self.batch_changed = True

    def has_removed(self) -> bool:
        """True while removed rows are left for new requests to take."""
        return bool(self._removed)

    def peek_removed(self) -> int | None:
        """The lowest of them, None if there are none."""
        return self.removed[-1] if self._removed else None

    def pop_removed(self) -> int | None:
        """The same, for a new request to take."""
        return self.removed.pop() if self._removed else None

    def reset(self) -> bool:
        """Forget all changes; returns whether rows were removed since the last update."""
        changed, self.batch_changed = self.batch_changed, False
        self._forget()
        return changed

    def get_and_reset(self, batch_size: int) -> BatchUpdate | None:
        """The update of a batch that now has `batch_size` rows, None if nothing changed; begins anew."""
        self.batch_changed = False
        update = None
        if self._removed or self.added or self.moved:
            update = BatchUpdate(batch_size, self.removed, self.added, self.moved)
        self._forget()
        return update

    def _forget(self) -> None:
        # An update keeps the lists that it was made of.
        self._removed, self.added, self.moved = [], [], []
        self._removed_was_read = False


class LogitsProcessors:
    """Processors by whether they can change a row's most likely token."""

    def __init__(self, logitsprocs: Iterable[Any] | None = None) -> None:
        self.argmax_invariant: list[Any] = []
        self.non_argmax_invariant: list[Any] = []
        for processor in logitsprocs or ():
            invariant = processor.is_argmax_invariant()
            (self.argmax_invariant if invariant else self.non_argmax_invariant).append(processor)

    @property
    def all(self) -> Iterator[Any]:
        """All of them, the invariant ones first."""
        return chain(self.argmax_invariant, self.non_argmax_invariant)
