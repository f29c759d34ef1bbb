"""Processors of which each does one thing wrong, and right ones that they are made from.

A request passes `token_id` and `boost`, and the right ones add the boost to the token's logit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, Field

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import LogitsProcessor, vllm_v1
from fastdeploy_lp.request.sampling_params import SamplingParams

if TYPE_CHECKING:
    from paddle import Tensor


class Params(BaseModel):
    token_id: int = Field(ge=0, le=500)
    boost: float = Field(ge=0.5, le=9)


class Boosts(LogitsProcessor):
    """Right. `edits` are (row, token, boost)."""

    Params = Params

    def __init__(self, fd_config: FDConfig) -> None:
        self.edits: list[tuple[int, int, float]] = []

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        args = share_inputs["logits_processors_args"]
        self.edits = []
        for row, slot in enumerate(active(share_inputs)):
            if args[slot]:
                self.edits.append((row, args[slot]["token_id"], self.boost_of(args[slot]["boost"], slot, share_inputs)))

    def boost_of(self, boost: float, slot: int, share_inputs: Mapping[str, Any]) -> float:
        return boost

    def apply(self, logits: Tensor) -> Tensor:
        for row, token, boost in self.edits:
            logits[row, token] += boost
        return logits


def active(share_inputs: Mapping[str, Any]) -> list[int]:
    slots: list[int] = np.flatnonzero(~share_inputs["stop_flags"][:, 0]).tolist()
    return slots


class NeedsANewToken(Boosts):
    """Right where each step shows one more token; fails where a server shows tokens late."""

    def __init__(self, fd_config: FDConfig) -> None:
        super().__init__(fd_config)
        self.seen: dict[int, tuple[int, int]] = {}

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        super().update_state(share_inputs)
        outputs = share_inputs["output_token_ids"]
        seen = {slot: (id(outputs[slot]), len(outputs[slot])) for slot in active(share_inputs)}
        if any(self.seen.get(slot) == each for slot, each in seen.items()):
            raise RuntimeError("no new token")
        self.seen = seen


class BoostsMoreEachStep(Boosts):
    """Right: by the number of output tokens."""

    only_with_args = True
    keeps_rows_valid = True

    def boost_of(self, boost: float, slot: int, share_inputs: Mapping[str, Any]) -> float:
        return boost * (1 + int(share_inputs["step_idx"][slot, 0]))


class RestsTooLong(BoostsMoreEachStep):
    """The rows of a crowd change more often than those of a request alone."""

    steps_at_rest = sys.maxsize


class Raises(Boosts):
    def boost_of(self, boost: float, slot: int, share_inputs: Mapping[str, Any]) -> float:
        return 1 / (int(share_inputs["step_idx"][slot, 0]) - 3)


class ReturnsNothing(Boosts):
    def apply(self, logits: Tensor) -> Tensor:
        super().apply(logits)
        return None


class ReturnsFewerColumns(Boosts):
    def apply(self, logits: Tensor) -> Tensor:
        return super().apply(logits)[:, :-1]


class ReturnsDoubles(Boosts):
    def apply(self, logits: Tensor) -> Tensor:
        return super().apply(logits).astype("float64")


class PopsItsArguments(Boosts):
    def boost_of(self, boost: float, slot: int, share_inputs: Mapping[str, Any]) -> float:
        boost = share_inputs["logits_processors_args"][slot].pop("boost")
        share_inputs["logits_processors_args"][slot]["boost"] = boost / 2
        return boost


class WritesFlags(Boosts):
    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        super().update_state(share_inputs)
        share_inputs["step_idx"][:] += 1


class DrawsAtRandom(Boosts):
    def boost_of(self, boost: float, slot: int, share_inputs: Mapping[str, Any]) -> float:
        return boost + np.random.default_rng().uniform()


class AdvancesInApply(Boosts):
    def apply(self, logits: Tensor) -> Tensor:
        super().apply(logits)
        self.edits = [(row, token, boost + 1) for row, token, boost in self.edits]
        return logits


class TakesSlotsForRows(Boosts):
    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        args = share_inputs["logits_processors_args"]
        self.edits = [
            (slot, args[slot]["token_id"], args[slot]["boost"]) for slot in active(share_inputs) if args[slot]
        ]

    def apply(self, logits: Tensor) -> Tensor:
        for slot, token, boost in self.edits:
            if slot < logits.shape[0]:
                logits[slot, token] += boost
        return logits


class CountsStoppedSlots(Boosts):
    def boost_of(self, boost: float, slot: int, share_inputs: Mapping[str, Any]) -> float:
        waiting = [
            name for name, stopped in zip(share_inputs["req_ids"], share_inputs["stop_flags"], strict=True) if stopped
        ]
        return boost * (1 + sum(map(bool, waiting)))


class ReadsAtFirstSight(Boosts):
    """A request that has no row when it is first seen is never looked at again."""

    def __init__(self, fd_config: FDConfig) -> None:
        super().__init__(fd_config)
        self.known: dict[str, dict[str, Any]] = {}

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        ids, args = share_inputs["req_ids"], share_inputs["logits_processors_args"]
        self.known = {name: kept for name, kept in self.known.items() if name in ids}
        for slot, name in enumerate(ids):
            if name and name not in self.known:
                self.known[name] = {} if share_inputs["stop_flags"][slot, 0] else dict(args[slot])
        chosen = [self.known[ids[slot]] for slot in active(share_inputs)]
        self.edits = [(row, each["token_id"], each["boost"]) for row, each in enumerate(chosen) if each]


class LeaksAcrossRows(Boosts):
    def apply(self, logits: Tensor) -> Tensor:
        self.edits = [(row, token, self.edits[0][2]) for row, token, _ in self.edits]
        return super().apply(logits)


class SaysOnlyWithArgs(Boosts):
    only_with_args = True

    def apply(self, logits: Tensor) -> Tensor:
        logits[:, 7] += 1.0
        return super().apply(logits)


class LeavesStateInSlots(Boosts):
    def __init__(self, fd_config: FDConfig) -> None:
        self.kept: dict[int, tuple[int, float]] = {}

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        args = share_inputs["logits_processors_args"]
        for slot in active(share_inputs):
            if args[slot]:
                self.kept[slot] = args[slot]["token_id"], args[slot]["boost"]
        rows = enumerate(active(share_inputs))
        self.edits = [(row, *self.kept[slot]) for row, slot in rows if slot in self.kept]


class CountsItsSteps(Boosts):
    """Starts again when a request comes back."""

    def __init__(self, fd_config: FDConfig) -> None:
        super().__init__(fd_config)
        self.steps: dict[str, int] = {}

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        here = [share_inputs["req_ids"][slot] for slot in active(share_inputs)]
        self.steps = {name: self.steps.get(name, 0) + 1 for name in here}
        super().update_state(share_inputs)

    def boost_of(self, boost: float, slot: int, share_inputs: Mapping[str, Any]) -> float:
        return boost + self.steps[share_inputs["req_ids"][slot]]


class RemembersWhoWasAway(CountsItsSteps):
    """Does not start again, unless it is built anew; remembers twenty."""

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        before = dict(list(self.steps.items())[-20:])
        super().update_state(share_inputs)
        self.steps = before | self.steps


class RemembersTheLongestOutput(Boosts):
    """Boosts by the longest output of a request, which it recognizes by its prompt."""

    def __init__(self, fd_config: FDConfig) -> None:
        super().__init__(fd_config)
        self.longest: dict[int, tuple[object, int]] = {}

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        before, self.longest = self.longest, {}
        for slot in active(share_inputs):
            prompt, length = share_inputs["prompt_token_ids"][slot], len(share_inputs["output_token_ids"][slot])
            known = before.get(id(prompt), (prompt, 0))[1]
            self.longest[id(prompt)] = prompt, max(known, length)
        super().update_state(share_inputs)

    def boost_of(self, boost: float, slot: int, share_inputs: Mapping[str, Any]) -> float:
        return boost + self.longest[id(share_inputs["prompt_token_ids"][slot])][1]


class KeepsFinishedRequests(Boosts):
    def __init__(self, fd_config: FDConfig) -> None:
        super().__init__(fd_config)
        self.seen: dict[str, int] = {}

    def boost_of(self, boost: float, slot: int, share_inputs: Mapping[str, Any]) -> float:
        self.seen[share_inputs["req_ids"][slot]] = int(share_inputs["step_idx"][slot, 0])
        return boost


class LiesAboutArgmax(Boosts):
    def is_argmax_invariant(self) -> bool:
        return True


class LiesAboutValidRows(Boosts):
    keeps_rows_valid = True

    def apply(self, logits: Tensor) -> Tensor:
        for row, _, _ in self.edits:
            logits[row] = float("-inf")
        return logits


class ForcesAnother(Boosts):
    def forced_tokens(self, slot: int, output: Sequence[int]) -> Sequence[int]:
        return [output[-1], 511]


class ForcesNoToken(Boosts):
    def forced_tokens(self, slot: int, output: Sequence[int]) -> Sequence[int]:
        return [1 << 20]


class ForcesNothingKnown(Boosts):
    def forced_tokens(self, slot: int, output: Sequence[int]) -> Any:
        return None


class AdvancesWhenAsked(Boosts):
    asked = 0

    def boost_of(self, boost: float, slot: int, share_inputs: Mapping[str, Any]) -> float:
        return boost + self.asked

    def forced_tokens(self, slot: int, output: Sequence[int]) -> Sequence[int]:
        self.asked += 1
        return ()


class MakesNaN(Boosts):
    def apply(self, logits: Tensor) -> Tensor:
        for row, _, _ in self.edits:
            logits[row] = logits[row] - logits[row] * 0.5
        return logits


class WaitsForTheDevice(Boosts):
    def apply(self, logits: Tensor) -> Tensor:
        for row, token, boost in self.edits:
            logits[row, token] = logits[row, token].item() + boost
        return logits


class ReturnsACopy(Boosts):
    def apply(self, logits: Tensor) -> Tensor:
        return super().apply(logits.clone())


class KeepsTheLogits(Boosts):
    def apply(self, logits: Tensor) -> Tensor:
        self.last = logits[0]
        return super().apply(logits)


class RefusesWithKeyError(Boosts):
    Params = None

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        if (sampling_params.extra_args or {}).get("boost") in (-1, 1e30):
            raise KeyError("boost")


class NoBoolean(Boosts):
    def is_argmax_invariant(self) -> Any:
        return "no"


class CannotBeBuilt(Boosts):
    def __init__(self, fd_config: FDConfig) -> None:
        raise OSError("no such file")


class NoApply(LogitsProcessor):
    def __init__(self, fd_config: FDConfig) -> None: ...

    def update_state(self, share_inputs: Mapping[str, Any]) -> None: ...


class IgnoresMoves(vllm_v1.LogitsProcessor):
    """For vLLM: rows that move leave their state behind."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        self.rows: dict[int, tuple[int, float]] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: vllm_v1.BatchUpdate | None) -> None:
        if batch_update is None:
            return
        for row in batch_update.removed:
            self.rows.pop(row, None)
        for row, params, _, _ in batch_update.added:
            self.rows.pop(row, None)
            if params.extra_args:
                self.rows[row] = params.extra_args["token_id"], params.extra_args["boost"]
        self.rows = {row: kept for row, kept in self.rows.items() if row < batch_update.batch_size}

    def apply(self, logits: Tensor) -> Tensor:
        for row, (token, boost) in self.rows.items():
            logits[row, token] += boost
        return logits


class ActsOnTheNextSlot(Boosts):
    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        super().update_state(share_inputs)
        for slot in np.flatnonzero(~share_inputs["stop_flags"][:, 0]).tolist():
            self.actions.emit(slot + 1, "for somebody else")


class EmitsASet(Boosts):
    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        super().update_state(share_inputs)
        for slot in np.flatnonzero(~share_inputs["stop_flags"][:, 0]).tolist():
            self.actions.emit(slot, {1, 2})


class FinishesInACrowd(Boosts):
    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        super().update_state(share_inputs)
        active = np.flatnonzero(~share_inputs["stop_flags"][:, 0]).tolist()
        for slot in active[2:]:
            self.actions.finish(slot, "crowded")


class CallableKeepsTokens(vllm_v1.AdapterLogitsProcessor):
    """Request-level: all requests' callables share a list."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        super().__init__(vllm_config, device, is_pin_memory)
        self.made: list[Callable[..., Any]] = []

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Callable[..., Any] | None:
        if not params.extra_args:
            return None
        token, boost = params.extra_args["token_id"], params.extra_args["boost"]

        def process(output_ids: list[int], row: Tensor) -> Tensor:
            row[token] += boost
            return row

        self.made.append(process)
        return process


class WaitingPlugin:
    def __init__(self, tokenizer: Any, parameters: Params) -> None:
        self.parameters = parameters

    def __call__(self, token_ids: list[int], logits: Tensor) -> Tensor:
        if logits.max() > 0:
            logits[self.parameters.token_id] += self.parameters.boost
        return logits


WAITING_PLUGIN = {"logits_processor_class": WaitingPlugin, "parameters_model": Params}
