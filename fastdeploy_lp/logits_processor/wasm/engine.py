"""Compilation of modules, and the resources that the instances of a process share."""

from __future__ import annotations

import ctypes
import threading
from collections import OrderedDict
from functools import lru_cache
from typing import TYPE_CHECKING

from fastdeploy_lp.logits_processor.wasm.errors import ModuleFault, WasmError
from fastdeploy_lp.logits_processor.wasm.host import HostFunctions
from fastdeploy_lp.logits_processor.wasm.interface import REQUIRED, STEPS, require_interface
from fastdeploy_lp.logits_processor.wasm.limits import MAX_INSTANCES, MEBIBYTE, TICK_SECONDS, WasmLimits
from fastdeploy_lp.logits_processor.wasm.module import WasmModule
from fastdeploy_lp.logits_processor.wasm.signatures import ModuleTypes

if TYPE_CHECKING:
    from wasmtime import Config, Engine
    from wasmtime._instance_pre import InstancePre

    from fastdeploy_lp.model_tokenizer import ModelTokenizer

MAX_COMPILED_BYTES = 32 * MEBIBYTE
"""Bytes of the modules that are kept compiled for later requests; machine code takes a few times as much."""

_READ_VOCABULARY = frozenset({"token_bytes", "vocabulary"})

# Features whose results may differ between machines or runs, or that no compiler needs yet for this purpose.
_OFF = (
    "wasm_threads",
    "shared_memory",
    "wasm_relaxed_simd",
    "wasm_memory64",
    "wasm_multi_memory",
    "wasm_gc",
    "wasm_function_references",
    "wasm_exceptions",
    "wasm_tail_call",
    "wasm_wide_arithmetic",
    "wasm_custom_page_sizes",
    "wasm_stack_switching",
    "wasm_component_model",
    "gc_support",
    "native_unwind_info",
    "parallel_compilation",
)
_ON = (
    "wasm_simd",
    "wasm_bulk_memory",
    "wasm_multi_value",
    "wasm_reference_types",
    "consume_fuel",
    "epoch_interruption",
    "cranelift_nan_canonicalization",
)
# Bytes of an instance's memory that stay resident for the next instance in its place.
_KEPT_RESIDENT = 128 * 1024


class EpochTicker:
    """Increments the engine's epoch while calls have deadlines, in a thread that sleeps otherwise.

    epoch: the number of increments.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._changed = threading.Condition()
        self._last = 0
        self._started = False
        self.epoch = 0

    def reach(self, epoch: int) -> None:
        """Lets the epoch advance at least to this one, and returns at once."""
        with self._changed:
            self._last = max(self._last, epoch)
            if not self._started:
                self._started = True
                threading.Thread(target=self._run, name="wasm-epochs", daemon=True).start()
            self._changed.notify()

    def _run(self) -> None:
        ticks = threading.Event()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self.epoch < self._last)
            ticks.wait(TICK_SECONDS)
            # The count is never ahead of the engine's epoch, so that no deadline is too early.
            self._engine.increment_epoch()
            self.epoch += 1


class MemoryQuota:
    """Bytes of linear memory that all instances of a process have together; safe for several threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = 0
        self._lock = threading.Lock()

    @property
    def taken(self) -> int:
        """Bytes in use."""
        return self._taken

    def change(self, num_bytes: int) -> None:
        """Takes bytes, or returns them if negative; raises ModuleFault if too few are left."""
        with self._lock:
            if num_bytes > 0 and self._taken + num_bytes > self._most:
                raise ModuleFault(f"out of memory: the modules of all requests together may have {self._most} bytes")
            self._taken += num_bytes


class LinkedModule:
    """A compiled module with its imports; each request gets an instance of it.

    pointer: of wasmtime's object. step: name of its step. needs_logits: the step reads the row. used: names of the
    exports that the server uses. initializes: it has constructors to run first. num_bytes: of the module. uses_host: it
    imports functions.
    """

    def __init__(self, linked: InstancePre, exports: frozenset[str], *, num_bytes: int, uses_host: bool) -> None:
        self._linked = linked
        self.pointer = ctypes.addressof(linked.ptr().contents)
        (self.step,) = STEPS.keys() & exports
        self.needs_logits = self.step == "lp_step_logits"
        self.initializes = "_initialize" in exports
        self.used = ("memory", *REQUIRED, self.step, *(("_initialize",) if self.initializes else ()))
        self.num_bytes = num_bytes
        self.uses_host = uses_host


class WasmEngine:
    """Compiles modules and keeps them by the SHA-256 of their bytes; safe for several threads.

    Instances have places in a pool, with memory that is copied from the module's when they write to it.
    """

    def __init__(self, limits: WasmLimits, vocab_size: int, tokenizer: ModelTokenizer | None) -> None:
        from wasmtime import Engine

        self.limits = limits
        self.vocab_size = vocab_size
        self.engine = Engine(_config(limits))
        self.pointer = ctypes.addressof(self.engine.ptr().contents)
        self.ticker = EpochTicker(self.engine)
        self.quota = MemoryQuota(limits.total_memory)
        self.host = HostFunctions(vocab_size, tokenizer)
        self._linker = self.host.linker(self.engine)
        self._lock = threading.Lock()
        self._linked: OrderedDict[str, LinkedModule] = OrderedDict()

    def linked(self, module: WasmModule) -> LinkedModule:
        """Returns the module, compiled at its first use; raises WasmError for one that cannot run."""
        with self._lock:
            found = self._linked.get(module.sha256)
            if found is not None:
                self._linked.move_to_end(module.sha256)
                return found
        made = self._link(module)
        with self._lock:
            self._linked[module.sha256] = made
            while sum(each.num_bytes for each in self._linked.values()) > MAX_COMPILED_BYTES and len(self._linked) > 1:
                self._linked.popitem(last=False)
        return made

    def ticks(self, seconds: float) -> int:
        """Returns the epochs in a time."""
        return max(round(seconds / TICK_SECONDS), 1)

    def _link(self, module: WasmModule) -> LinkedModule:
        from wasmtime import Module, WasmtimeError

        try:
            compiled = Module(self.engine, module.content)
        except WasmtimeError as error:
            raise WasmError(f"is no valid WebAssembly: {_first_line(error)}") from None
        types = ModuleTypes.of(module.content)
        require_interface(types)
        try:
            linked = self._linker.instantiate_pre(compiled)
        except WasmtimeError as error:
            raise WasmError(f"cannot be linked: {_first_line(error)}") from None
        names = {each.name for each in types.imports}
        if not names.isdisjoint(_READ_VOCABULARY):
            # Takes tens of milliseconds once, which no step should wait for.
            self.host.read_vocabulary()
        return LinkedModule(linked, frozenset(types.exports), num_bytes=len(module.content), uses_host=bool(names))


def _config(limits: WasmLimits) -> Config:
    from wasmtime import Config
    from wasmtime import _bindings as capi

    config = Config()
    for name in _OFF:
        setattr(config, name, False)
    for name in _ON:
        setattr(config, name, True)
    config.cranelift_opt_level = "speed"
    config.max_wasm_stack = limits.stack
    config.memory_reservation = limits.memory
    config.memory_guard_size = 0
    config.memory_reservation_for_growth = 0
    # Paddle, Python's faulthandler and others set handlers for the signals that traps would use otherwise.
    capi.wasmtime_config_signals_based_traps_set(config.ptr(), False)
    pool = capi.wasmtime_pooling_allocation_config_new()
    for option, value in {
        "total_core_instances": MAX_INSTANCES,
        "total_memories": MAX_INSTANCES,
        "total_tables": MAX_INSTANCES,
        "max_memory_size": limits.memory,
        "table_elements": limits.table_elements,
        "linear_memory_keep_resident": _KEPT_RESIDENT,
        "table_keep_resident": _KEPT_RESIDENT,
    }.items():
        getattr(capi, f"wasmtime_pooling_allocation_config_{option}_set")(pool, value)
    capi.wasmtime_pooling_allocation_strategy_set(config.ptr(), pool)
    capi.wasmtime_pooling_allocation_config_delete(pool)
    return config


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:500]


@lru_cache(maxsize=8)
def wasm_engine(vocab_size: int, tokenizer: ModelTokenizer | None, limits: WasmLimits = WasmLimits()) -> WasmEngine:  # noqa: B008 - frozen
    """Returns the engine of this process for a model; raises ImportError without the package `wasmtime`."""
    return WasmEngine(limits, vocab_size, tokenizer)
