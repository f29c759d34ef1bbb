"""Processors of which every request has an instance of its own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fastdeploy_lp.logits_processor.author_code import contained
from fastdeploy_lp.logits_processor.base import LogitsProcessor
from fastdeploy_lp.logits_processor.processor_args import ProcessorArgs
from fastdeploy_lp.logits_processor.vllm_v1 import raise_row_errors, require_same_kind

if TYPE_CHECKING:
    from paddle import Tensor

RowProcessor = Callable[["list[int]", "list[int]", "Tensor"], "Tensor"]
"""(prompt ids, output ids, row [vocab_size]) → row."""


class PerRequestProcessor(LogitsProcessor):
    """Makes an instance at the first step of a request that uses the processor, and drops it when the request ends."""

    only_with_args = True

    def __init__(self) -> None:
        # None: the request's instance failed, and the request goes on without it if it goes on at all.
        self._instances: dict[str, RowProcessor | None] = {}
        self._rows: list[tuple[int, str, list[int], list[int]]] = []

    @abstractmethod
    def new_instance(self, args: ProcessorArgs) -> RowProcessor:
        """The instance of a request with these arguments."""

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        """Match the active rows with their requests' instances."""
        using, ids = share_inputs["using_slots"], share_inputs["req_ids"]
        here = {ids[slot] for slot in using}
        self._instances = {key: kept for key, kept in self._instances.items() if key in here}
        self._rows = []
        failed: dict[int, Exception] = {}
        for row, slot in enumerate(np.flatnonzero(~share_inputs["stop_flags"][:, 0]).tolist()):
            if slot not in using:
                continue
            if ids[slot] not in self._instances:
                try:
                    self._instances[ids[slot]] = self.new_instance(share_inputs["logits_processors_args"][slot])
                except BaseException as error:  # noqa: BLE001 - an author's code may raise anything
                    failed[row] = contained(error)
                    self._instances[ids[slot]] = None
            prompt, output = share_inputs["prompt_token_ids"][slot], share_inputs["output_token_ids"][slot]
            self._rows.append((row, ids[slot], prompt, output))
        raise_row_errors(failed)

    def apply(self, logits: Tensor) -> Tensor:
        """Each instance on its own row; one that fails is dropped, and the others still run."""
        failed: dict[int, Exception] = {}
        for row, request_id, prompt, output in self._rows:
            instance = self._instances[request_id]
            if instance is None:
                continue
            try:
                part = logits[row]
                logits[row] = require_same_kind(instance(prompt, output, part), part)
            except BaseException as error:  # noqa: BLE001 - an author's code may raise anything
                failed[row] = contained(error)
                self._instances[request_id] = None
        raise_row_errors(failed)
        return logits
