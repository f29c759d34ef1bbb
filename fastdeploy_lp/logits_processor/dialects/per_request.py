"""Processors with a separate instance for every request."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fastdeploy_lp.logits_processor.actions import RequestActions
from fastdeploy_lp.logits_processor.base import LogitsProcessor
from fastdeploy_lp.logits_processor.errors import contained
from fastdeploy_lp.logits_processor.processor_args import ProcessorArgs
from fastdeploy_lp.logits_processor.vllm_v1 import raise_row_errors, require_same_kind

if TYPE_CHECKING:
    from paddle import Tensor

RowProcessor = Callable[["list[int]", "list[int]", "Tensor", RequestActions], "Tensor"]
"""(prompt ids, output ids, row [vocab_size], the request's verbs) → row."""


@dataclass
class _Own:
    """One request's instance; None after a failure, and the request then ends or continues without it.

    error: reason why it could not be built, until the request's next step reports it. kept: True if it stays until
    `forget`, also while the request has no slot. behind: True if it must still be called for the output tokens so far.
    given, made: the row before and after its call in this step, None before that call. actions: its verbs, which keep
    what it did in that call.
    """

    instance: RowProcessor | None
    error: Exception | None = None
    kept: bool = False
    behind: bool = False
    given: Tensor | None = None
    made: Tensor | None = None
    actions: RequestActions = field(default_factory=RequestActions)


class PerRequestProcessor(LogitsProcessor):
    """Calls each request's instance once for each of its tokens, in order.

    The server builds an instance outside its steps and passes it to `adopt`; it lives until `forget`, so that its state
    survives preemption. A request without one gets an instance in `update_state`, until it leaves its slot; if the
    request already has output tokens, the instance is first called for each of them on a row of zeros.
    """

    only_with_args = True

    def __init__(self) -> None:
        self._own: dict[str, _Own] = {}
        self._rows: list[tuple[int, int, _Own, list[int], list[int]]] = []

    @abstractmethod
    def new_instance(self, args: ProcessorArgs) -> RowProcessor:
        """Returns the instance of a request with these arguments; any thread may call this."""

    def instance_for(self, args: ProcessorArgs, prompt: Sequence[int] = (), seed: int = 0) -> RowProcessor:  # noqa: ARG002 - others need it
        """Returns `new_instance(args)` for a request with this prompt and seed."""
        return self.new_instance(args)

    def adopt(self, request_id: str, instance: RowProcessor | None, error: Exception | None = None) -> None:
        """Uses this instance for a new request; None if it could not be built because of `error`."""
        self._own[request_id] = _Own(instance, error, kept=True)

    def forget(self, request_id: str) -> None:
        """Drops the instance of a request that has ended."""
        own = self._own.pop(request_id, None)
        if own is not None:
            # `_rows` of the last step may still refer to it.
            own.instance = own.given = own.made = None

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        """Matches the active rows with their requests' instances; raises RowErrors for failed constructors."""
        using, ids = share_inputs["using_slots"], share_inputs["req_ids"]
        prompts, outputs = share_inputs["prompt_token_ids"], share_inputs["output_token_ids"]
        here = {ids[slot] for slot in using}
        self._own = {key: own for key, own in self._own.items() if own.kept or key in here}
        self._rows = []
        failed: dict[int, Exception] = {}
        for row, slot in enumerate(np.flatnonzero(~share_inputs["stop_flags"][:, 0]).tolist()):
            if slot not in using:
                continue
            prompt, output = prompts[slot], outputs[slot]
            own = self._own.get(ids[slot])
            if own is None:
                own = self._own[ids[slot]] = _Own(None, behind=bool(output))
                try:
                    params = share_inputs["sampling_params"][slot]
                    args = share_inputs["logits_processors_args"][slot]
                    own.instance = self.instance_for(args, prompt, params.seed or 0)
                except BaseException as error:  # noqa: BLE001 - an author's code may raise anything
                    own.error = contained(error)
            if own.error is not None:
                failed[row], own.error = own.error, None
            own.given = own.made = None
            self._rows.append((row, slot, own, prompt, output))
        raise_row_errors(failed)

    def apply(self, logits: Tensor) -> Tensor:
        """Calls each instance on its row; drops one that fails, still runs the others, then raises RowErrors."""
        failed: dict[int, Exception] = {}
        for row, slot, own, prompt, output in self._rows:
            if own.instance is None:
                continue
            try:
                logits[row] = self._called(own, prompt, output, logits[row], slot)
                own.actions.pass_on(self.actions, slot)
            except BaseException as error:  # noqa: BLE001 - an author's code may raise anything
                failed[row] = contained(error)
                own.instance = None
        raise_row_errors(failed)
        return logits

    def _called(self, own: _Own, prompt: list[int], output: list[int], part: Tensor, slot: int) -> Tensor:
        """Returns the row `part` after the request's instance.

        When another processor has failed, the step's rows are processed again. A stateful instance must not see a token
        twice, so the second time it is not called if the row is the same.
        """
        if own.given is not None and own.made is not None and bool((own.given == part).all()):
            return own.made
        instance: RowProcessor = own.instance  # type: ignore[assignment]
        if own.behind:
            _replay(instance, prompt, output, part)
            own.behind = False
        given = part.clone()
        with own.actions.of(self.actions, slot):
            made = require_same_kind(instance(prompt, output, part, own.actions), part)
        own.given, own.made = given, made.clone()
        return made


def _replay(instance: RowProcessor, prompt: list[int], output: list[int], like: Tensor) -> None:
    """Calls the instance for each output token so far, each time on a row of zeros; its actions then are dropped."""
    import paddle

    dropped = RequestActions()
    for count in range(len(output)):
        with dropped:
            instance(prompt, output[:count], paddle.zeros_like(like), dropped)
