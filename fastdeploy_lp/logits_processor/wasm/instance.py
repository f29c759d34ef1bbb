"""An instance of a module, for one request."""

from __future__ import annotations

import ctypes
import struct
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.logits_processor.wasm.edits import StepEdits, read_edits
from fastdeploy_lp.logits_processor.wasm.errors import ModuleFault
from fastdeploy_lp.logits_processor.wasm.library import RAW_BYTES, wasm_library

if TYPE_CHECKING:
    from fastdeploy_lp.logits_processor.wasm.engine import LinkedModule, MemoryQuota, WasmEngine

_OUT_OF_FUEL, _INTERRUPTED = 11, 10
_TRAPS = {
    0: "its stack is full",
    1: "it read or wrote outside its memory",
    3: "it read or wrote outside its table",
    4: "it called an empty place of its table",
    5: "it called a function of another type",
    6: "an integer overflowed",
    7: "it divided by zero",
    8: "a number has no integer",
    9: "it executed `unreachable`: it aborted, or ran out of memory",
}
MAX_ARGUMENTS = 6


class _MemoryUse:
    """The bytes of an instance's memory in the quota, returned when the instance goes."""

    def __init__(self, quota: MemoryQuota) -> None:
        self._quota = quota
        self._num_bytes = 0

    def set(self, num_bytes: int) -> None:
        """Changes the number; raises ModuleFault if the quota has too little."""
        self._quota.change(num_bytes - self._num_bytes)
        self._num_bytes = num_bytes

    def release(self) -> None:
        """Returns all of them."""
        self.set(0)


class WasmInstance:
    """A started instance with its parameters and its prompt; one thread at a time may use it.

    params: UTF-8 JSON. The constructor raises ModuleRefusal if the module refuses them, and ModuleFault for a fault, as
    `step` does. After a fault it is of no use.
    """

    def __init__(
        self, engine: WasmEngine, linked: LinkedModule, params: bytes, prompt: Sequence[int], seed: int
    ) -> None:
        self._engine = engine
        self._limits = engine.limits
        self._library = wasm_library()
        self.needs_logits = linked.needs_logits
        self.host_error: BaseException | None = None
        self._uses_host = linked.uses_host
        self.starting = True
        self._values = (ctypes.c_uint8 * (RAW_BYTES * MAX_ARGUMENTS))()
        self._at = ctypes.addressof(self._values)
        self._integers = memoryview(self._values).cast("B").cast("Q")
        self._result = ctypes.c_uint32.from_buffer(self._values)
        self._trap = ctypes.c_void_p()
        self._trap_at = ctypes.addressof(self._trap)
        self._memory_use = _MemoryUse(engine.quota)
        weakref.finalize(self, self._memory_use.release)
        self._bytes: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._row = self._tokens = self._room = 0
        self._start(linked, params, prompt, seed)
        self.starting = False
        # The next call sets its own.
        self._deadline = 0

    def step(self, tokens: Sequence[int], row: NDArray[np.float32] | None = None) -> StepEdits | None:
        """Returns the module's edits for the tokens since its last step, None for none; valid until its next step.

        row: logits [vocab_size], for a module that needs them.
        """
        count = len(tokens)
        if count > self._room:
            self._tokens, self._room = self._allocate(4 * count), count
        begin = self._tokens // 4
        for place in range(count):
            self._integers_in_memory[begin + place] = tokens[place]
        if row is not None:
            self._floats[self._row // 4 : self._row // 4 + len(row)] = row
        values = self._integers
        values[0], values[2], values[4] = self._tokens, count, self._row
        self._call(self._step, 3 if self.needs_logits else 2, self._limits.step_fuel, self._step_ticks)
        found = self._result.value
        return read_edits(self, found, self._engine.vocab_size) if found else None

    # For host functions and for the edits.

    def read(self, place: int, num_bytes: int) -> NDArray[np.uint8]:
        """Returns a view of its memory; raises ModuleFault for a place outside it."""
        end = place + num_bytes
        if end > len(self._bytes):
            self._refresh()
            if end > len(self._bytes):
                raise ModuleFault(f"bytes {place} to {end} are outside its memory of {len(self._bytes)} bytes")
        return self._bytes[place:end]

    def write(self, place: int, content: NDArray[np.uint8]) -> None:
        """Writes to its memory; raises ModuleFault for a place outside it."""
        self.read(place, len(content))[:] = content

    def text(self, place: int, num_bytes: int) -> str:
        """Returns a text in its memory; raises ModuleFault unless it is UTF-8."""
        try:
            return self.read(place, num_bytes).tobytes().decode()
        except UnicodeDecodeError as error:
            raise ModuleFault(f"a text that is no UTF-8: {error.reason}") from None

    def integers(self, place: int, count: int) -> tuple[int, ...]:
        """Returns aligned uint32; raises ModuleFault for another place."""
        self._require_words(place, count)
        return struct.unpack_from(f"<{count}I", self._integers_in_memory, place)

    def words(self, place: int, count: int) -> NDArray[np.uint32]:
        """Returns a view of aligned uint32 [count]; raises ModuleFault for another place."""
        self._require_words(place, count)
        return self._words[place // 4 : place // 4 + count]

    def floats(self, place: int, count: int) -> NDArray[np.float32]:
        """The same of float32."""
        self._require_words(place, count)
        return self._floats[place // 4 : place // 4 + count]

    def charge(self, fuel: int) -> None:
        """Uses up fuel of the call that is running; raises ModuleFault if it has too little."""
        left = ctypes.c_uint64()
        self._library.get_fuel(self._context, ctypes.addressof(left))
        if left.value <= fuel:
            raise ModuleFault(self._out_of_fuel())
        self._library.set_fuel(self._context, left.value - fuel)

    # Its start.

    def _start(self, linked: LinkedModule, params: bytes, prompt: Sequence[int], seed: int) -> None:
        from wasmtime import Store, Trap, WasmtimeError

        limits = self._limits
        self._step_ticks = self._engine.ticks(limits.step_seconds)
        ticks = self._engine.ticks(limits.init_seconds)
        self._store = Store(self._engine.engine)
        self._store.set_limits(limits.memory, limits.table_elements, 1, -1, 1)
        self._context = ctypes.addressof(self._store._context().contents)
        self._library.set_fuel(self._context, limits.init_fuel)
        self._library.set_deadline(self._context, ticks)
        self._deadline = self._engine.ticker.epoch + ticks
        self._engine.ticker.reach(self._deadline)
        self._engine.host.running.instance = self
        try:
            instance = linked.pre.instantiate(self._store)
        except (Trap, WasmtimeError) as error:
            raise self._host_error() or ModuleFault(f"it cannot start: {_short(str(error))}") from None
        finally:
            self._engine.host.running.instance = None
        exports = instance.exports(self._store)
        self._exports = exports
        self._memory = exports["memory"]._memory
        self._memory_at = ctypes.addressof(self._memory)
        self._base = self._library.memory_data(self._context, self._memory_at)
        self._refresh()
        if linked.initializes:
            self._start_call("_initialize")
        step = exports["lp_step_logits" if self.needs_logits else "lp_step"]._func
        self._step_function, self._step = step, ctypes.addressof(step)
        given = self._placed(np.frombuffer(params, np.uint8))
        tokens = self._placed(np.asarray(prompt, np.uint32).view(np.uint8))
        vocab_size = self._engine.vocab_size
        self._row = self._allocate(4 * vocab_size) if self.needs_logits else 0
        self._room = 1
        self._tokens = self._allocate(4 * self._room)
        arguments = (given, len(params), tokens, len(prompt), vocab_size, seed)
        if self._start_call("lp_init", *arguments):
            raise ModuleFault(f"lp_init returned {self._result.value}, which is not 0")

    def _placed(self, content: NDArray[np.uint8]) -> int:
        place = self._allocate(len(content))
        self.write(place, content)
        return place

    def _allocate(self, num_bytes: int) -> int:
        """Returns the place of new bytes from the module's `lp_alloc`, which the module leaves alone."""
        place = self._start_call("lp_alloc", num_bytes)
        self._require_words(place, -(-num_bytes // 4))
        return place

    def _start_call(self, name: str, *arguments: int) -> int:
        function = self._exports[name]._func
        for place, value in enumerate(arguments):
            self._integers[2 * place] = value
        limits = self._limits
        fuel = limits.init_fuel if self.starting else limits.step_fuel
        ticks = self._engine.ticks(limits.init_seconds if self.starting else limits.step_seconds)
        self._call(ctypes.addressof(function), len(arguments), fuel, ticks)
        return self._result.value

    # Calls.

    def _call(self, function: int, count: int, fuel: int, ticks: int) -> None:
        library, context = self._library, self._context
        library.set_fuel(context, fuel)
        epoch = self._engine.ticker.epoch
        if epoch + ticks > self._deadline:
            # For twice the time, so that most calls find enough of it left.
            library.set_deadline(context, 2 * ticks)
            self._deadline = epoch + 2 * ticks
            self._engine.ticker.reach(self._deadline)
        if self._uses_host:
            self._engine.host.running.instance = self
        error = library.call(context, function, self._at, count or 1, self._trap_at)
        if self._uses_host:
            self._engine.host.running.instance = None
        if error or self._trap.value:
            raise self._fault(error)
        if library.memory_size(context, self._memory_at) != self._size:
            self._refresh()

    def _fault(self, error: int | None) -> BaseException:
        code, message = None, ""
        if error:
            message = self._library.take_error(error)
        else:
            code, message = self._library.take_trap(self._trap.value or 0)
            self._trap.value = None
        found = self._host_error()
        if found is not None:
            return found
        if code == _OUT_OF_FUEL:
            return ModuleFault(self._out_of_fuel())
        if code == _INTERRUPTED:
            limits = self._limits
            seconds = limits.init_seconds if self.starting else limits.step_seconds
            return ModuleFault(f"it took longer than {seconds:g} s")
        return ModuleFault(_short(message) if code is None else _TRAPS.get(code, _short(message)))

    def _host_error(self) -> BaseException | None:
        error, self.host_error = self.host_error, None
        return error

    def _out_of_fuel(self) -> str:
        fuel, call = (self._limits.init_fuel, "its start") if self.starting else (self._limits.step_fuel, "a step")
        return f"out of fuel: {call} may use {fuel} units, about one an instruction"

    def _refresh(self) -> None:
        """Views the memory that the module has now: it never moves."""
        size = self._library.memory_size(self._context, self._memory_at)
        self._memory_use.set(size)
        self._size = size
        self._bytes = np.frombuffer((ctypes.c_uint8 * size).from_address(self._base), np.uint8) if size else self._bytes
        self._words: NDArray[np.uint32] = self._bytes[: size // 4 * 4].view(np.uint32)
        self._floats: NDArray[np.float32] = self._words.view(np.float32)
        self._integers_in_memory = self._words.data

    def _require_words(self, place: int, count: int) -> None:
        if place % 4:
            raise ModuleFault(f"the place {place} of numbers is no multiple of 4")
        if place + 4 * count > self._size:
            self.read(place, 4 * count)


def _short(message: str) -> str:
    return " ".join(message.split())[:500]
