"""WebAssembly modules, with an isolated instance for every request that names them; docs/wasm.md has the interface."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from fastdeploy_lp.logits_processor.actions import RequestActions
from fastdeploy_lp.logits_processor.base import LogitsProcessor
from fastdeploy_lp.logits_processor.dialects.base import Dialect, ModelFacts
from fastdeploy_lp.logits_processor.dialects.per_request import PerRequestProcessor
from fastdeploy_lp.logits_processor.errors import LogitsProcessorSpecError, contained
from fastdeploy_lp.logits_processor.processor_args import ProcessorArgs
from fastdeploy_lp.logits_processor.vllm_v1 import raise_row_errors
from fastdeploy_lp.logits_processor.wasm.edits import StepEdits, without_faults
from fastdeploy_lp.logits_processor.wasm.engine import WasmEngine, wasm_engine
from fastdeploy_lp.logits_processor.wasm.errors import ModuleFault, WasmError
from fastdeploy_lp.logits_processor.wasm.instance import WasmInstance
from fastdeploy_lp.logits_processor.wasm.module import WasmModule
from fastdeploy_lp.platforms import to_device
from fastdeploy_lp.platforms.host_memory import writable_view

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig
    from fastdeploy_lp.model_executor.ops.row_ops import RowEdits
    from fastdeploy_lp.request.sampling_params import SamplingParams

LIBRARY = "wasmtime"
# Any size: the interface does not depend on it.
_CHECKED_VOCABULARY = 1024
NOTHING = StepEdits()
FLOAT32 = "paddle.float32"


class WasmDialect(Dialect):
    """One instance per request that names the module, called with the tokens since its last step."""

    name = "wasm"
    by_name_only = True
    tries_instances = True
    bounds_memory = True

    def recognizes(self, found: Any) -> bool:
        """Returns True for modules."""
        return isinstance(found, WasmModule)

    def check(self, found: Any, spec: str) -> None:
        """Raises LogitsProcessorSpecError without wasmtime, or for a module that lacks the interface."""
        if importlib.util.find_spec(LIBRARY) is None:
            problem = f"is a WebAssembly module, and the package {LIBRARY} is not installed"
            raise LogitsProcessorSpecError(spec, f"{problem}: pip install 'fastdeploy-lp[wasm]'")
        try:
            # Finds mistakes in its schema, too.
            self.params_model(found)
            wasm_engine(_CHECKED_VOCABULARY, None).linked(found)
        except WasmError as error:
            raise LogitsProcessorSpecError(spec, str(error)) from None

    def params_model(self, found: Any) -> type[BaseModel] | None:
        """Returns the model of the module's JSON Schema, None if it declares none."""
        model: type[BaseModel] | None = found.params_model
        return model

    def why_it_needs_args(self, found: Any) -> str | None:
        """Returns the reason why its schema refuses no arguments; a module without a schema may take none."""
        return None if self.params_model(found) is None else super().why_it_needs_args(found)

    def validate(self, found: Any, sampling_params: SamplingParams, facts: ModelFacts) -> None:
        """Starts an instance without a prompt and steps it on a row of zeros, to find what the schema does not."""
        engine = wasm_engine(facts.vocab_size, facts.tokenizer)
        instance = _started(engine, found, sampling_params.extra_args or {}, (), sampling_params.seed or 0)
        edits = instance.step((), np.zeros(facts.vocab_size, np.float32) if instance.needs_logits else None)
        if edits is not None:
            edits.require_valid_biases(facts.vocab_size)

    def build(self, found: Any, fd_config: FDConfig) -> LogitsProcessor:
        """Returns a processor that starts instances as requests arrive."""
        # Imported here: the API process checks modules and does not need Paddle.
        from fastdeploy_lp.model_executor.ops.row_selection import row_ops

        facts = ModelFacts.of(fd_config)
        return WasmProcessor(found, wasm_engine(facts.vocab_size, facts.tokenizer), row_ops())

    def class_of(self, found: Any) -> type:
        """Returns a class with the module's name and description."""
        return type(found.name, (), {"__doc__": found.description, "max_rewind": found.max_rewind})


class HostRows:
    """Rows of a step's logits in float32, for modules that read them; copied from a device when one is read first."""

    def __init__(self, logits: Tensor) -> None:
        self._logits = logits
        self._rows: NDArray[np.float32] | None = None

    def __getitem__(self, row: int) -> NDArray[np.float32]:
        """Returns logits [vocab_size], valid until the next edit."""
        if self._rows is None:
            view = writable_view(self._logits)
            self._rows = self._logits.astype("float32").numpy() if view is None else view.astype(np.float32, copy=False)
        found: NDArray[np.float32] = self._rows[row]
        return found


class WasmRow:
    """A request's instance, with the tokens that it has seen. before: the row of its last step, if it reads rows."""

    def __init__(self, instance: WasmInstance, row_edits: RowEdits) -> None:
        self._instance, self._row_edits = instance, row_edits
        self._seen = 0
        self.before: NDArray[np.float32] | None = None

    def use_rewindable(self, rewindable: Callable[[], int]) -> None:
        """Sets the function that returns how many tokens can be taken back in this step."""
        self._instance.rewindable = rewindable

    def step(self, output: Sequence[int], rows: HostRows | NDArray[np.float32], row: int) -> StepEdits:
        """Returns the edits of a step after these output tokens, for the row of that number."""
        tokens, self._seen = output[self._seen :], len(output)
        if not self._instance.needs_logits:
            return self._instance.step(tokens) or NOTHING
        self._remember(rows[row])
        return self._instance.step(tokens, rows[row]) or NOTHING

    def step_again(self, edits: StepEdits, rows: HostRows | NDArray[np.float32], row: int) -> StepEdits:
        """Returns the edits for another row of the same step, which differs if an earlier processor has failed.

        edits: of the first one. A module that reads no rows is not called again.
        """
        if self.before is None or np.array_equal(self.before, rows[row], equal_nan=True):
            return edits
        self._remember(rows[row])
        return self._instance.step((), rows[row]) or NOTHING

    def _remember(self, row: NDArray[np.float32]) -> None:
        if self.before is None:
            self.before = row.copy()
        else:
            # A new array of this size costs several times as much: its pages are mapped anew.
            self.before[:] = row

    def __call__(self, _prompt: Sequence[int], output: Sequence[int], row: Tensor, actions: RequestActions) -> Tensor:
        """Steps as a processor of one row does; for calls whose row serves no request."""
        edited = row.clone().reshape([1, -1])
        edits = self.step(output, HostRows(edited), 0)
        _pass_on(edits, actions.finish, actions.emit, actions.rewind)
        for fault in put_edits(self._row_edits, edited, [(0, edits)]).values():
            raise fault
        return edited[0]


class WasmProcessor(PerRequestProcessor):
    """Native wrapper of a module, which edits the rows of all requests at once."""

    def __init__(self, module: WasmModule, engine: WasmEngine, row_edits: RowEdits) -> None:
        super().__init__()
        self._module, self._engine, self._row_edits = module, engine, row_edits
        # This step: the edits of each row.
        self._edits: dict[int, StepEdits] = {}

    def new_instance(self, args: ProcessorArgs) -> WasmRow:
        """Returns an instance without a prompt."""
        return self.instance_for(args)

    def instance_for(self, args: ProcessorArgs, prompt: Sequence[int] = (), seed: int = 0) -> WasmRow:
        """Returns an instance for a request."""
        return WasmRow(_started(self._engine, self._module, args, prompt, seed), self._row_edits)

    def update_state(self, share_inputs: Mapping[str, Any]) -> None:
        """Begins a step."""
        self._edits = {}
        super().update_state(share_inputs)

    def apply(self, logits: Tensor) -> Tensor:
        """Steps each instance, then edits the rows; raises RowErrors for failed ones."""
        rows = HostRows(logits)
        failed: dict[int, Exception] = {}
        edits = []
        for row, slot, own, _, output in self._rows:
            instance: WasmRow | None = own.instance  # type: ignore[assignment]
            if instance is None:
                continue
            try:
                if own.behind:
                    own.behind = False
                    _replay(instance, output, logits)
                if self._module.max_rewind:
                    instance.use_rewindable(partial(self.actions.rewindable, slot))
                known = self._edits.get(row)
                made = instance.step(output, rows, row) if known is None else instance.step_again(known, rows, row)
                self._edits[row] = made
                if made.acts:
                    verbs = (self.actions.finish, self.actions.emit, self.actions.rewind)
                    _pass_on(made, *(partial(verb, slot) for verb in verbs))
                if made is not NOTHING:
                    edits.append((row, made))
            except BaseException as error:  # noqa: BLE001 - an alarm may interrupt it
                failed[row] = contained(error)
        failed |= put_edits(self._row_edits, logits, edits)
        for row, _, own, _, _ in self._rows if failed else ():
            if row in failed:
                own.instance = None
        raise_row_errors(failed)
        return logits


def _started(
    engine: WasmEngine, module: WasmModule, args: Mapping[str, Any], prompt: Sequence[int], seed: int
) -> WasmInstance:
    params = json.dumps(dict(args), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    return WasmInstance(engine, engine.linked(module), params, prompt, seed)


def _replay(instance: WasmRow, output: Sequence[int], logits: Tensor) -> None:
    """Steps the instance through the output so far, each time on a row of zeros, without its actions."""
    zeros = np.zeros((1, logits.shape[-1]), np.float32)
    for count in range(len(output)):
        instance.step(output[:count], zeros, 0)


def put_edits(row_edits: RowEdits, logits: Tensor, edits: list[tuple[int, StepEdits]]) -> dict[int, Exception]:
    """Makes edits, each given with its row of the logits [rows, vocab_size]; rows with faults, returned, stay."""
    edits, biases, failed = without_faults(edits, logits.shape[-1])
    if not edits:
        return failed
    # Paddle lacks operators for other types on some devices.
    edited = logits if str(logits.dtype) == FLOAT32 else logits.astype("float32")
    _replace_rows(edited, [(row, each.row) for row, each in edits if each.row is not None])
    if biases is not None:
        row_edits.add(edited, biases.rows, biases.tokens, biases.values)
    masks = [(row, each.allowed) for row, each in edits if each.allowed is not None]
    if masks:
        rows, bits = zip(*masks, strict=True)
        row_edits.mask(edited, np.array(rows, np.int64), np.array(bits, np.uint32).view(np.int32))
    if edited is not logits:
        logits.copy_(edited.astype(logits.dtype), True)
    return failed


def _replace_rows(logits: Tensor, replaced: Sequence[tuple[int, NDArray[np.float32]]]) -> None:
    view = writable_view(logits) if replaced else None
    for row, values in replaced:
        if view is not None:
            view[row] = values
        else:
            logits[row] = to_device(values)


def _pass_on(edits: StepEdits, finish: Any, emit: Any, rewind: Any) -> None:
    if edits.finish is not None:
        finish(edits.finish)
    for value in edits.emits:
        emit(value)
    if edits.rewind is not None:
        rewind(*edits.rewind)


__all__ = ["ModuleFault", "WasmDialect", "WasmProcessor"]
