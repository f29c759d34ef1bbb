"""vLLM's batches: base classes, updates and their builder, the collection of processors, and a step's description."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from fastdeploy_lp.logits_processor import vllm_v1
from fastdeploy_lp.logits_processor.vllm_v1 import AddedRequest, BatchUpdate, MovedRequest, RemovedRequest


class LogitsProcessor(vllm_v1.LogitsProcessor):
    """The batch-level interface."""


class AdapterLogitsProcessor(vllm_v1.AdapterLogitsProcessor, LogitsProcessor):
    """The adapter for request-level callables."""


class BatchUpdateBuilder:
    """Collects changes of a batch until `get_and_reset` returns them as an update."""

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
        """Removed rows, highest first; after this read, no further row can be removed before the next update."""
        self._removed_was_read = True
        self._removed.sort(reverse=True)
        return self._removed

    def removed_append(self, index: int) -> None:
        """Records that a row's request has left; raises RuntimeError after a read of `removed`."""
        if self._removed_was_read:
            raise RuntimeError(f"row {index} cannot be removed: the removed rows of this step were read already")
        self._removed.append(index)
        self.batch_changed = True

    def has_removed(self) -> bool:
        """Returns True while removed rows are left for new requests."""
        return bool(self._removed)

    def peek_removed(self) -> int | None:
        """Returns the lowest removed row, None if there is none."""
        return self.removed[-1] if self._removed else None

    def pop_removed(self) -> int | None:
        """Removes and returns the lowest removed row for a new request, None if there is none."""
        return self.removed.pop() if self._removed else None

    def reset(self) -> bool:
        """Drops all changes; returns True if rows were removed since the last update."""
        changed, self.batch_changed = self.batch_changed, False
        self._forget()
        return changed

    def get_and_reset(self, batch_size: int) -> BatchUpdate | None:
        """Returns the update of a batch that now has `batch_size` rows, None without changes; drops all changes."""
        self.batch_changed = False
        update = None
        if self._removed or self.added or self.moved:
            update = BatchUpdate(batch_size, self.removed, self.added, self.moved)
        self._forget()
        return update

    def _forget(self) -> None:
        # An update keeps the lists that it was made from.
        self._removed, self.added, self.moved = [], [], []
        self._removed_was_read = False


class LogitsProcessors:
    """Processors, split by their ability to change a row's most likely token."""

    def __init__(self, logitsprocs: Iterable[Any] | None = None) -> None:
        self.argmax_invariant: list[Any] = []
        self.non_argmax_invariant: list[Any] = []
        for processor in logitsprocs or ():
            invariant = processor.is_argmax_invariant()
            (self.argmax_invariant if invariant else self.non_argmax_invariant).append(processor)

    @property
    def all(self) -> Iterator[Any]:
        """All processors, the invariant ones first."""
        return chain(self.argmax_invariant, self.non_argmax_invariant)


@dataclass
class SamplingMetadata:
    """Metadata fields under vLLM's names; tensors are None for a step that does not need them."""

    temperature: Any = None
    all_greedy: bool = False
    all_random: bool = False
    top_p: Any = None
    top_k: Any = None
    generators: dict[int, Any] = field(default_factory=dict)
    max_num_logprobs: int | None = None
    no_penalties: bool = True
    prompt_token_ids: Any = None
    frequency_penalties: Any = None
    presence_penalties: Any = None
    repetition_penalties: Any = None
    output_token_ids: list[list[int]] = field(default_factory=list)
    allowed_token_ids_mask: Any = None
    bad_words_token_ids: dict[int, list[list[int]]] = field(default_factory=dict)
    logitsprocs: LogitsProcessors = field(default_factory=LogitsProcessors)
