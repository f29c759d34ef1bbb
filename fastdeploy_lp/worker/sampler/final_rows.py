"""The rows of a step on which processors run after the filters, and the draw of the step's tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray
from paddle import Tensor

from fastdeploy_lp.logits_processor.chain.entry import ChainEntry
from fastdeploy_lp.logits_processor.chain.final_stages import Choice, FinalStages
from fastdeploy_lp.logits_processor.chain.rows import put_rows, take_rows
from fastdeploy_lp.logits_processor.chain.trace import ChainTrace
from fastdeploy_lp.model_executor.ops.paddle_edits import can_be_drawn_from
from fastdeploy_lp.model_executor.ops.row_ops import Draws, Int64s, RowOps
from fastdeploy_lp.platforms import to_device, writable_view
from fastdeploy_lp.worker.sampler.draw_watcher import DrawWatcher, FieldEdits


class FinalRows(DrawWatcher):
    """Draws a step's tokens: on some rows, processors edit the filtered logits or choose the token.

    Other rows are drawn as in a step without such processors. A chosen token that cannot be is replaced by a drawn one;
    after the step's read, it is reported as a fault of the processor. skips_faults: True if a request may continue
    after such a fault, so that its row must be drawn.
    """

    def __init__(self, ops: RowOps, stages: FinalStages, trace: ChainTrace | None, *, skips_faults: bool) -> None:
        self._ops = ops
        self._stages = stages
        self._trace = trace
        self._skips_faults = skips_faults
        # Choices that an author's code made, which may be illegal, with their rows.
        self._doubtful: list[tuple[Choice, Tensor, Int64s]] = []
        self._rows: Int64s
        self._vocab_size = 0
        self._draws: Draws

    def draw(self, logits: Tensor, draws: Draws, slots: Int64s, *, guard: bool) -> tuple[Draws, Tensor | Int64s]:
        """Returns the parameters of the draw and the tokens int64 [rows]; row r of logits is slot `slots[r]`.

        Tokens are in host memory if a builtin has chosen all of them there; then none of them is to be checked.
        Edited rows replace the rows of logits [rows, vocab_size], and their parameters filter no more.
        """
        if self._trace is not None:
            self._trace.begin()
            self._stages.tell_skipped(self._trace)
        own = self._stages.slots
        if not own.size:
            return draws, self._ops.draw(logits, draws, guard=guard)
        rows = np.searchsorted(slots, own)
        self._vocab_size, self._rows = logits.shape[-1], rows
        self._draws = draws if len(rows) == len(slots) else draws.of(rows)
        part = self._filtered(logits)
        if self._trace is not None:
            traced = [slot for slot in self._trace.slots if slot in own]
            self._trace.filtered(traced, np.searchsorted(own, traced), part)
            self._trace.begin()
        if self._stages.edits:
            part = self._edited(part)
            put_rows(logits, rows, part)
            draws = unfiltered(draws, rows)
        choices = self._stages.draw(part, self._draws.uniform, self._trace)
        if self._trace is not None:
            self._trace.start_clock()
        return draws, self._with_choices(logits, draws, slots, part, choices, guard=guard)

    def filter_again(self, logits: Tensor) -> Tensor:
        """Filters the rows of a step's logits [rows, vocab_size] in place, as before the first processor."""
        put_rows(logits, self._rows, self._ops.filtered(take_rows(logits, self._rows), self._draws))
        return logits

    def edit_again(self, entry: ChainEntry, logits: Tensor) -> Tensor:
        """Lets a processor edit the rows of a step's logits [rows, vocab_size] in place, which `filter_again` made."""
        before = take_rows(logits, self._rows)
        put_rows(logits, self._rows, keep_ruled_out(self._stages.edit_again(entry, before.clone()), before))
        return logits

    def _filtered(self, logits: Tensor) -> Tensor:
        """Returns the filtered rows; `logits` itself if they are all rows, and nothing changes them."""
        own = logits if len(self._rows) == logits.shape[0] else take_rows(logits, self._rows)
        if self._stages.edits or not self._stages.only_builtins or not _keeps_all(self._draws):
            return self._ops.filtered(own, self._draws)
        return own

    def _edited(self, part: Tensor) -> Tensor:
        kept = part.clone()
        return keep_ruled_out(self._stages.edit(part, kept.clone, self._trace), kept)

    def _with_choices(
        self, logits: Tensor, draws: Draws, slots: Int64s, drawn_from: Tensor, choices: list[Choice], *, guard: bool
    ) -> Tensor | Int64s:
        """Returns the step's tokens int64 [rows]; rows without a choice are drawn."""
        if len(choices) == 1 and choices[0].entry.is_builtin and len(choices[0].slots) == len(slots):
            return choices[0].tokens
        temperature = draws.temperature.copy()
        for choice in choices if not self._skips_faults else ():
            # The cheapest draw: it finds unusable rows, and its token is used nowhere.
            temperature[np.searchsorted(slots, choice.slots)] = 0
        guard = guard or self._stages.edits or bool(choices)
        tokens = self._ops.draw(logits, replace(draws, temperature=temperature), guard=guard)
        for choice in choices:
            rows = np.searchsorted(slots, choice.slots)
            chosen = to_device(choice.tokens) if isinstance(choice.tokens, np.ndarray) else choice.tokens
            if not choice.entry.is_builtin:
                self._doubtful.append((choice, chosen, rows))
                own = to_device(np.searchsorted(self._stages.slots, choice.slots))
                chosen = _legal_or(paddle.gather(tokens, to_device(rows)), chosen, paddle.gather(drawn_from, own))
            tokens = tokens.index_put_((to_device(rows),), chosen)
        return tokens

    def edited(self, logits: Tensor, slots: Int64s, tail: FieldEdits) -> None:
        """Does nothing: `draw` follows."""

    def drawn(self, logits: Tensor, draws: Draws, tokens: Tensor) -> list[Tensor]:  # noqa: ARG002 - interface
        """Returns the choices that may be illegal."""
        return [chosen for _, chosen, _ in self._doubtful]

    def take(self, tokens: Int64s, read: Iterator[NDArray[Any]]) -> None:
        """Reports choices that are not the step's tokens: they were illegal, unless the row has no token at all."""
        for choice, _, rows in self._doubtful:
            chosen = next(read).astype(np.int64)
            for place in np.flatnonzero((chosen != tokens[rows]) & (tokens[rows] >= 0)).tolist():
                self._stages.report_illegal(choice, place, int(chosen[place]), self._vocab_size)


def unfiltered(draws: Draws, rows: Int64s) -> Draws:
    """Returns the parameters with a plain draw at temperature 1 from these rows."""
    plain = {"temperature": 1, "min_p": 0, "top_k": 0, "top_p": 1}
    copies = {name: getattr(draws, name).copy() for name in plain}
    for name, value in plain.items():
        copies[name][rows] = value
    return replace(draws, **copies)


def _keeps_all(draws: Draws) -> bool:
    """Returns True if the draw neither divides nor filters any row."""
    fields = (draws.temperature, draws.min_p, draws.top_k, draws.top_p)
    return all(row == (1, 0, 0, 1) for row in zip(*(field.tolist() for field in fields), strict=True))


def keep_ruled_out(logits: Tensor, before: Tensor) -> Tensor:
    """Returns logits [rows, vocab_size] with -inf where `before` has -inf; changes them in place where it can."""
    host, earlier = writable_view(logits), writable_view(before)
    if host is None or earlier is None:
        return paddle.where(before == -np.inf, before, logits)
    np.copyto(host, -np.inf, where=earlier == -np.inf)
    return logits


def _legal_or(drawn: Tensor, chosen: Tensor, logits: Tensor) -> Tensor:
    """Returns the chosen tokens int64 [rows] where they have a finite logit, otherwise and for -1 the drawn ones."""
    size = logits.shape[-1]
    own = paddle.take_along_axis(logits, chosen.clip(0, size - 1).unsqueeze(1), axis=1).squeeze(1)
    legal = (chosen >= 0) & (chosen < size) & can_be_drawn_from(own) & (drawn >= 0)
    return paddle.where(legal, chosen, drawn)
