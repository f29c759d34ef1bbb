"""An instance of a module, for one request."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

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
TOKEN_BYTES = 256
"""Of the place for a step's new tokens; more get a new place."""


class _Resources:
    """A store, which has all of an instance, and the bytes of its memory in the quota.

    Views of the memory keep it, so that edits may outlive their instance.
    """

    def __init__(self, store: int, quota: MemoryQuota) -> None:
        self._store = store
        self._delete = wasm_library().delete_store
        self._quota = quota
        self._num_bytes = 0

    def use_memory(self, num_bytes: int) -> None:
        """Sets the number of bytes; raises ModuleFault if the quota has too little."""
        self._quota.change(num_bytes - self._num_bytes)
        self._num_bytes = num_bytes

    def view(self, place: int, size: int) -> NDArray[np.uint8]:
        """Returns a view of bytes at an address of the store."""
        memory: Any = (ctypes.c_uint8 * size).from_address(place)
        memory.kept = self
        return np.frombuffer(memory, np.uint8)

    def __del__(self) -> None:
        self._delete(self._store)
        self.use_memory(0)


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
        self.rewindable: Callable[[], int] = lambda: 0
        self._uses_host = linked.uses_host
        self.starting = True
        self._values = (ctypes.c_uint8 * (RAW_BYTES * MAX_ARGUMENTS))()
        self._at = ctypes.addressof(self._values)
        self._integers = memoryview(self._values).cast("B").cast("Q")
        self._result = ctypes.c_uint32.from_buffer(self._values)
        self._trap = ctypes.c_void_p()
        self._trap_at = ctypes.addressof(self._trap)
        store = self._library.new_store(engine.pointer, None, None)
        self._resources = _Resources(store, engine.quota)
        self._context = self._library.context_of(store)
        limits = engine.limits
        self._library.limit_store(store, limits.memory, limits.table_elements, 1, -1, 1)
        self._bytes: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._size = 0
        self._memory_at: int | None = None
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
        library, context, limits = self._library, self._context, self._limits
        self._step_ticks = self._engine.ticks(limits.step_seconds)
        self._start_ticks = self._engine.ticks(limits.init_seconds)
        self._deadline = 0
        instance = (ctypes.c_uint8 * library.instance_bytes)()
        instance_at = ctypes.addressof(instance)
        # Its start function may run.
        self._begin_call(limits.init_fuel, self._start_ticks)
        self._end_call(library.instantiate(linked.pointer, context, instance_at, self._trap_at))
        names = {name: library.export(context, instance_at, name) for name in linked.used}
        self._exports = names
        self._memory_at = names["memory"].place
        self._base = library.memory_data(context, self._memory_at)
        self._refresh()
        if linked.initializes:
            self._start_call("_initialize")
        self._step = names[linked.step].place
        self._row_bytes = 4 * self._engine.vocab_size if self.needs_logits else 0
        sizes = [-(-size // 16) * 16 for size in (len(params), 4 * len(prompt), TOKEN_BYTES, self._row_bytes)]
        given = self._allocate(sum(sizes))
        tokens = given + sizes[0]
        self._tokens, self._room = tokens + sizes[1], TOKEN_BYTES // 4
        self._row = self._tokens + sizes[2]
        self.write(given, np.frombuffer(params, np.uint8))
        self.write(tokens, np.asarray(prompt, np.uint32).view(np.uint8))
        arguments = (given, len(params), tokens, len(prompt), self._engine.vocab_size, seed)
        if self._start_call("lp_init", *arguments):
            raise ModuleFault(f"lp_init returned {self._result.value}, which is not 0")

    def _allocate(self, num_bytes: int) -> int:
        """Returns the place of new bytes from the module's `lp_alloc`, which the module leaves alone."""
        place = self._start_call("lp_alloc", num_bytes)
        self._require_words(place, -(-num_bytes // 4))
        return place

    def _start_call(self, name: str, *arguments: int) -> int:
        for place, value in enumerate(arguments):
            self._integers[2 * place] = value
        fuel, ticks = self._limits.step_fuel, self._step_ticks
        if self.starting:
            fuel, ticks = self._limits.init_fuel, self._start_ticks
        self._call(self._exports[name].place, len(arguments), fuel, ticks)
        return self._result.value

    # Calls.

    def _call(self, function: int, count: int, fuel: int, ticks: int) -> None:
        self._begin_call(fuel, ticks)
        self._end_call(self._library.call(self._context, function, self._at, count or 1, self._trap_at))
        if self._library.memory_size(self._context, self._memory_at) != self._size:
            self._refresh()

    def _begin_call(self, fuel: int, ticks: int) -> None:
        self._library.set_fuel(self._context, fuel)
        epoch = self._engine.ticker.epoch
        if epoch + ticks > self._deadline:
            # For twice the time, so that most calls find enough of it left.
            self._library.set_deadline(self._context, 2 * ticks)
            self._deadline = epoch + 2 * ticks
            self._engine.ticker.reach(self._deadline)
        if self._uses_host:
            self._engine.host.running.instance = self

    def _end_call(self, error: int | None) -> None:
        if self._uses_host:
            self._engine.host.running.instance = None
        if error or self._trap.value:
            raise self._fault(error)

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
        if self._memory_at is None:
            raise ModuleFault("its start function calls the server; lp_init may")
        size = self._library.memory_size(self._context, self._memory_at)
        self._resources.use_memory(size)
        self._size = size
        self._bytes = self._resources.view(self._base, size) if size else self._bytes
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
