"""Runs one logits processor step by step, without a model or a server."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor.arguments.request import RequestArgsValidator
from fastdeploy_lp.logits_processor.chain.entry import ChainEntry
from fastdeploy_lp.logits_processor.chain.recorded_actions import ActionTotals, SlotActions
from fastdeploy_lp.logits_processor.declared import DeclaredProcessor, Selection
from fastdeploy_lp.logits_processor.errors import contained
from fastdeploy_lp.logits_processor.processor_args import ReadOnlyList
from fastdeploy_lp.logits_processor.sequence_state.uniform import seeded_uniform
from fastdeploy_lp.logits_processor.share_inputs import ShareInputs
from fastdeploy_lp.logits_processor.stages import DRAW, FILTERED, LOGITS
from fastdeploy_lp.logits_processor.testing.loading import Processor, load, phrase_encoder, standalone_fd_config
from fastdeploy_lp.logits_processor.vllm_v1 import RowErrors
from fastdeploy_lp.platforms import on_host, to_device
from fastdeploy_lp.request.sampling_params import SamplingParams
from fastdeploy_lp.stats import ProcessorStats

if TYPE_CHECKING:
    from paddle import Tensor


@dataclass
class Occupant:
    """A request in a slot; `output` is the list that grows by a token a step."""

    slot: int
    request_id: str
    prompt: list[int]
    output: list[int]
    selection: Selection = field(default_factory=Selection)
    params: SamplingParams = field(default_factory=SamplingParams)
    dropped_draws: int = 0

    @property
    def entry_id(self) -> str:
        """See `SlotSequence`."""
        return self.request_id if not self.dropped_draws else f"{self.request_id}~{self.dropped_draws}"

    @property
    def prompt_token_ids(self) -> list[int]:
        """`prompt`, under the name that sequences have for it."""
        return self.prompt

    @property
    def output_token_ids(self) -> list[int]:
        """`output`, under the name that sequences have for it."""
        return self.output


class Slots(ShareInputs):
    """`share_inputs` of requests that get one token at a time."""

    def append_token(self, slot: int, token: int) -> None:
        """Records a sampled token, in the live output list as well."""
        self.append_each([slot], [token])

    def append_each(self, slots: Sequence[int], tokens: Sequence[int]) -> None:
        """Records a sampled token for each of these slots, in the live output lists as well."""
        self.append_tokens(np.array(slots), np.array(tokens))
        for slot, token in zip(slots, tokens, strict=True):
            list.append(self["output_token_ids"][slot], token)


@dataclass
class StepCount:
    """Number of steps, and of those without an update, which several harnesses may add to."""

    steps: int = 0
    at_rest: int = 0


Row = NDArray[np.float32]
PROMPT = (5, 6, 7)


# A check runs the same requests again and again, each time in another harness.
@lru_cache(maxsize=256)
def _random_row(name: str, vocab_size: int) -> Row:
    random = np.random.default_rng(zlib.crc32(name.encode()))
    return random.normal(0.0, 4.0, vocab_size).astype(np.float32)


class StepError(Exception):
    """The processor raised `cause` in `phase`, a method such as "update_state" or "draw"; or "an action" failed."""

    def __init__(self, phase: str, cause: Exception) -> None:
        super().__init__(f"{phase} raises {type(cause).__name__}: {cause}")
        self.phase = phase
        self.cause = cause


class ProcessorHarness:
    """A processor in a separate chain, with slots that requests enter and leave.

    processor: a SPEC, a class of any dialect or a plugin dict. fd_config: configuration for its constructor; by default
    without a real model, with 1024 tokens and 8 slots. seed: seed of random logits, besides request and position.
    rests: leave out the updates of a processor at rest, as a chain does.

    `actions` has the processor's actions in the last step, by request id. They change nothing here: a request that the
    processor finishes stays until `leave`, and one that it rewinds continues with the step's token until `rewind`.

    Raises LogitsProcessorSpecError for an object that is no processor, RuntimeError if its constructor fails.
    """

    def __init__(
        self,
        processor: Processor | DeclaredProcessor,
        *,
        fd_config: FDConfig | None = None,
        seed: int = 0,
        rests: bool = True,
    ) -> None:
        declared = processor if isinstance(processor, DeclaredProcessor) else load(processor)
        self.fd_config = fd_config or standalone_fd_config()
        self.vocab_size = self.fd_config.model_config.vocab_size
        self._totals: dict[int, ActionTotals] = {}
        self.entry = ChainEntry(declared, self.fd_config, ProcessorStats(declared.name), totals=self._totals)
        num_slots = self.fd_config.scheduler_config.max_num_seqs
        self.slots = Slots(num_slots, self.fd_config.model_config.max_model_len)
        self.requests: dict[int, Occupant] = {}
        self.count = StepCount()
        self.actions: dict[str, SlotActions] = {}
        self._held: set[int] = set()
        self._rests = rests
        # The stop flags of the last step.
        self._last_flags = b""
        self._seed = seed
        self._validator = RequestArgsValidator(
            [declared], self.vocab_size, phrase_encoder(self.fd_config), tokenizer=self.fd_config.tokenizer
        )

    def enter(
        self,
        request_id: str,
        args: Mapping[str, Any] | None = None,
        *,
        prompt: Sequence[int] = PROMPT,
        output: list[int] | None = None,
        params: SamplingParams | None = None,
        slot: int | None = None,
        held: bool = False,
    ) -> int:
        """Puts a request into a slot, by default the lowest free one; returns the slot number.

        args: its arguments for the processor; None for a request that does not use it. output: tokens that it has
        generated before; the same list continues to grow. held: True if it has no row yet, as in the middle of its
        prompt.

        Raises RequestArgsError (a ValueError) for arguments that a server would refuse.
        """
        free = (each for each in range(len(self.slots["req_ids"])) if each not in self.requests)
        place = next(free, None) if slot is None else slot
        if place is None or place in self.requests:
            raise ValueError("slot: all are taken" if place is None else f"slot: {place} is taken")
        selection = self.select(args, params)
        occupant = Occupant(
            place,
            request_id,
            ReadOnlyList(prompt),
            ReadOnlyList() if output is None else output,
            selection,
            params or SamplingParams(),
        )
        self.requests[place] = occupant
        self.slots.assign(occupant)
        self.entry.enter(place, selection)
        if held:
            self._held.add(place)
        return place

    def select(self, args: Mapping[str, Any] | None, params: SamplingParams | None = None) -> Selection:
        """Returns the API process's validated form of the arguments; raises RequestArgsError for refused ones."""
        if args is None:
            return Selection()
        named = {self.entry.name: dict(args)}
        given = {name: getattr(params, name) for name in ("temperature", "seed")} if params else {}
        return self._validator.validate(SamplingParams(logits_processors=named, **given))

    def leave(self, slot: int) -> Occupant:
        """Removes and returns the request of a slot: finished, aborted or preempted."""
        self._held.discard(slot)
        self.slots.clear(slot)
        self.entry.leave(slot)
        return self.requests.pop(slot)

    def rewind(self, slot: int, count: int) -> None:
        """Takes back the request's last `count` output tokens, as a server does: it leaves and enters its slot."""
        occupant = self.requests[slot]
        kept = ReadOnlyList(occupant.output[: len(occupant.output) - count])
        dropped = occupant.dropped_draws + count + 1
        self.slots.clear(slot)
        self.entry.leave(slot)
        self.requests[slot] = replace(occupant, output=kept, dropped_draws=dropped)
        self.slots.assign(self.requests[slot])
        self.entry.enter(slot, occupant.selection, again=True)

    def hold(self, slot: int) -> None:
        """Leaves the request without a row until `release`."""
        self._held.add(slot)

    def release(self, slot: int) -> None:
        """Lets the request have a row again."""
        self._held.discard(slot)

    @property
    def active(self) -> list[int]:
        """Slots that have a row, ascending."""
        return sorted(self.requests.keys() - self._held)

    def step(
        self, logits: Mapping[str, Any] | None = None, tokens: Mapping[str, int] | None = None, *, applications: int = 1
    ) -> dict[str, Row]:
        """Runs a step; returns every active request's row [vocab_size] after the processor, by request id.

        logits: rows before it; random ones for requests that are left out. tokens: token that each request then
        generates; the most likely token of its row by default. applications: number of `apply` calls, on fresh logits
        each time; there is more than one when another processor of the chain fails.

        Raises StepError for an error of the processor; its cause is a TypeError for a result that breaks the
        contract.
        """
        self.actions = {}
        active = self.active
        if not active:
            return {}
        before = np.stack([self._row(slot, logits or {}) for slot in active])
        self.update()
        for _ in range(applications):
            after = self.apply(self.tensor(before)).numpy()
        self._require_choices(after)
        self.actions = self._taken()
        rows = {self.requests[slot].request_id: row for slot, row in zip(active, after, strict=True)}
        given = tokens or {}
        self.slots.append_each(
            active, [given[name] if name in given else int(row.argmax()) for name, row in rows.items()]
        )
        return rows

    def update(self) -> None:
        """Runs the first half of a step: the processor reads the slots."""
        self.count.steps += 1
        self._totals.clear()
        # No token is sent to a client.
        self._totals |= {slot: ActionTotals(rewindable=len(each.output)) for slot, each in self.requests.items()}
        self.slots.set_active(self.active)
        flags = self.stop_flags
        same_rows, self._last_flags = flags.tobytes() == self._last_flags, flags.tobytes()
        if not self.entry.needs_update:
            return
        if self._rests and self.entry.rests(same_rows=same_rows):
            self.count.at_rest += 1
        else:
            self._run("update_state", self.entry.update_state, self.slots, flags)

    @property
    def stop_flags(self) -> NDArray[np.bool_]:
        """Stop flags [S, 1] of this step as the processor sees them."""
        flags: NDArray[np.bool_] = np.ones_like(self.slots["stop_flags"])
        flags[self.seen] = False
        return flags

    @property
    def seen(self) -> list[int]:
        """Slots whose rows the processor sees, ascending: after the filters, its own with a temperature above 0."""
        if self.entry.stage == LOGITS:
            return self.active
        sampled = (slot for slot in self.active if self.requests[slot].params.temperature > 0)
        return [slot for slot in sampled if self.entry.works_on(slot)]

    def apply(self, logits: Tensor) -> Tensor:
        """Runs the second half; returns the logits [rows, vocab_size] after the processor.

        A row whose token it draws becomes 0 for this token and -inf for others, NaN if it cannot be drawn.
        """
        if not self.entry.has_work or not self.seen:
            return logits
        if self.entry.stage == LOGITS:
            return self._applied(logits)
        import paddle

        rows = paddle.to_tensor(np.searchsorted(self.active, self.seen))
        part = paddle.gather(logits, rows)
        part = self._applied(part) if self.entry.stage == FILTERED else self._drawn(part)
        return logits.index_put_((rows,), part)

    def _applied(self, logits: Tensor) -> Tensor:
        result: Tensor = self._run("apply", self.entry.apply, logits)
        return result

    def _drawn(self, logits: Tensor) -> Tensor:
        import paddle

        held = [self.requests[slot] for slot in self.seen]
        seeds = np.array([each.params.seed or 0 for each in held], np.uint64)
        places = np.array([len(each.prompt) + len(each.output) for each in held], np.uint64)
        tokens = on_host(self._run("draw", self.entry.draw, logits, seeded_uniform(seeds, places)))
        chosen = to_device(np.arange(self.vocab_size) == tokens[:, None])
        legal = chosen & (logits > -np.inf)
        impossible = ~legal.any(axis=1, keepdim=True)
        values = paddle.where(legal, paddle.zeros_like(logits), paddle.full_like(logits, -np.inf))
        return paddle.where(impossible, paddle.full_like(logits, np.nan), values)

    def _require_choices(self, after: NDArray[np.float32]) -> None:
        """Raises StepError for a row whose token cannot be drawn."""
        if self.entry.stage == DRAW and np.isnan(after[np.searchsorted(self.active, self.seen)]).any():
            raise StepError("draw", ValueError("the token is out of the vocabulary, or its logit is -inf"))

    def forced_tokens(self, slot: int, count: int) -> list[int]:
        """Returns up to `count` tokens that the processor will force in a slot after its output; asked between steps.

        Empty for a processor without `forced_tokens`, and for a request that has had no row yet. Raises StepError for
        an error of the processor, also a TypeError or ValueError for a result that is no sequence of token ids.
        """
        if not self.entry.forces_tokens:
            return []
        found: list[int] = self._run("forced_tokens", self.entry.forced_tokens, slot, self.requests[slot].output, count)
        return found

    def tensor(self, rows: NDArray[Any]) -> Tensor:
        """Returns logits as the chain gets them."""
        return to_device(np.asarray(rows, np.float32))

    def random_row(self, request_id: str, position: int) -> Row:
        """Returns logits [vocab_size] that depend only on request, position and seed."""
        return _random_row(f"{self._seed} {request_id} {position}", self.vocab_size).copy()

    def _row(self, slot: int, logits: Mapping[str, Any]) -> Row:
        occupant = self.requests[slot]
        given = logits.get(occupant.request_id)
        if given is None:
            return self.random_row(occupant.request_id, len(occupant.output))
        row = np.asarray(given, np.float32)
        if row.shape != (self.vocab_size,):
            raise ValueError(f"logits: {occupant.request_id} has {row.shape}, a row is ({self.vocab_size},)")
        return row

    def _taken(self) -> dict[str, SlotActions]:
        """Returns the step's actions by request id; raises StepError for one that a server refuses."""
        taken = {}
        for slot, recorded in self.entry.actions.take():
            if recorded.error is not None:
                raise StepError("an action", recorded.error)
            found = taken[self.requests[slot].request_id] = SlotActions()
            found.add(self.entry.name, recorded)
        return taken

    @staticmethod
    def _run(phase: str, method: Any, *args: Any) -> Any:
        try:
            return method(*args)
        except RowErrors as error:
            raise StepError(phase, next(iter(error.by_row.values()))) from error
        except BaseException as error:  # an author's code may raise anything
            raise StepError(phase, contained(error)) from error
