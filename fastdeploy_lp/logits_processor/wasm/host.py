"""Functions that modules may import: the tokenizer, the vocabulary, and a way to fail with a reason."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.logits_processor.errors import MAX_TEXT
from fastdeploy_lp.logits_processor.wasm.errors import ModuleFault, ModuleRefusal
from fastdeploy_lp.logits_processor.wasm.interface import HOST, I32
from fastdeploy_lp.logits_processor.wasm.library import RAW_BYTES, wasm_library

if TYPE_CHECKING:
    from wasmtime import Engine, Linker

    from fastdeploy_lp.logits_processor.wasm.instance import WasmInstance
    from fastdeploy_lp.model_tokenizer import ModelTokenizer

CALL_FUEL = 20_000
"""Fuel of each call: it takes about as long as this many instructions."""

BYTE_FUEL = 2000
"""Fuel for each byte or token that is converted."""

MAX_CONVERTED = 64 * 1024
"""Bytes or tokens that a call may convert."""

_ALL_ONES = 0xFFFFFFFF


class HostFunctions:
    """Functions of one model, for the instances of all modules.

    An output that does not fit is not written; the result is its whole length in any case.
    """

    def __init__(self, vocab_size: int, tokenizer: ModelTokenizer | None) -> None:
        self._vocab_size = vocab_size
        self._tokenizer = tokenizer
        # The instance that each thread runs.
        self.running = threading.local()
        self._callbacks: list[Any] = []

    def read_vocabulary(self) -> None:
        """Reads the bytes of all tokens, unless there is no tokenizer; without it, their first use does."""
        if self._tokenizer is not None:
            _ = self._all_bytes

    def linker(self, engine: Engine) -> Linker:
        """Returns a linker with the functions; this object keeps them alive."""
        from wasmtime import FuncType, Linker, ValType

        library, linker = wasm_library(), Linker(engine)
        functions: dict[str, Callable[..., int | None]] = {
            "fail": self._fail,
            "tokenize": self._tokenize,
            "detokenize": self._detokenize,
            "token_bytes": self._token_bytes,
            "vocabulary": self._vocabulary,
            "rewindable": self._rewindable,
            "abort": self._abort,
        }
        for (module, name), (arguments, results) in HOST.items():
            kind = FuncType(
                [ValType.i32() if each == I32 else ValType.i64() for each in arguments],
                [ValType.i32() for _ in results],
            )
            callback = library.callback_type(self._callback(functions[name], len(arguments), bool(results)))
            self._callbacks.append((callback, library.finalizer_type(0)))
            text = module.encode(), name.encode()
            library.define_host(
                ctypes.addressof(linker.ptr().contents),
                *(text[0], len(text[0]), text[1], len(text[1])),
                ctypes.addressof(kind.ptr().contents),
                *(callback, None, self._callbacks[-1][1]),
            )
        return linker

    def _callback(self, function: Callable[..., int | None], count: int, returns: bool) -> Callable[..., int | None]:
        """Returns the function as wasmtime calls it; an error is kept for the instance's caller."""

        def called(_: int | None, _caller: int, values: int, _count: int) -> int | None:
            instance: WasmInstance = self.running.instance
            try:
                arguments = [ctypes.c_uint32.from_address(values + RAW_BYTES * place).value for place in range(count)]
                result = function(instance, *arguments)
                if returns:
                    ctypes.c_uint32.from_address(values).value = int(result or 0) & _ALL_ONES
            except BaseException as error:  # noqa: BLE001 - no exception may pass through compiled code
                instance.host_error = error
                return wasm_library().new_trap()
            return None

        return called

    def _fail(self, instance: WasmInstance, text: int, length: int) -> None:
        reason = instance.text(text, min(length, MAX_TEXT))
        raise ModuleRefusal(reason) if instance.starting else ModuleFault(reason)

    def _abort(self, instance: WasmInstance, message: int, _file: int, line: int, column: int) -> None:
        raise ModuleFault(f"it aborted in line {line}, column {column}{_assembly_text(instance, message)}")

    def _tokenize(self, instance: WasmInstance, text: int, length: int, out: int, capacity: int) -> int:
        instance.charge(CALL_FUEL + BYTE_FUEL * length)
        _require_few(length)
        ids = self._required_tokenizer.encode(instance.text(text, length), add_special_tokens=False)
        return _put(instance, np.asarray(ids, np.uint32), out, capacity)

    def _detokenize(self, instance: WasmInstance, tokens: int, count: int, out: int, capacity: int) -> int:
        instance.charge(CALL_FUEL + BYTE_FUEL * count)
        _require_few(count)
        ids = instance.read(tokens, 4 * count).view(np.uint32).tolist()
        if any(each >= self._vocab_size for each in ids):
            raise ModuleFault(f"detokenize: a token beyond the vocabulary of {self._vocab_size}")
        text = str(self._required_tokenizer.decode(ids)).encode()
        return _put(instance, np.frombuffer(text, np.uint8), out, capacity)

    def _token_bytes(self, instance: WasmInstance, token: int, out: int, capacity: int) -> int:
        instance.charge(CALL_FUEL)
        if token >= self._vocab_size:
            raise ModuleFault(f"token_bytes: {token} is beyond the vocabulary of {self._vocab_size}")
        offsets, content = self._all_bytes
        return _put(instance, content[offsets[token] : offsets[token + 1]], out, capacity)

    def _vocabulary(self, instance: WasmInstance, offsets: int, out: int, capacity: int) -> int:
        """Writes the bytes of all tokens one after the other, and where each begins, vocab_size + 1 numbers."""
        begins, content = self._all_bytes
        instance.charge(CALL_FUEL + len(content) + begins.nbytes)
        if capacity >= len(content):
            instance.write(offsets, begins.view(np.uint8))
        return _put(instance, content, out, capacity)

    def _rewindable(self, instance: WasmInstance) -> int:
        instance.charge(CALL_FUEL)
        return instance.rewindable()

    @cached_property
    def _all_bytes(self) -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
        pieces = self._required_tokenizer.vocabulary_bytes(self._vocab_size)
        offsets = np.zeros(self._vocab_size + 1, np.uint32)
        np.cumsum([len(each) for each in pieces], out=offsets[1:])
        return offsets, np.frombuffer(b"".join(pieces), np.uint8)

    @property
    def _required_tokenizer(self) -> ModelTokenizer:
        if self._tokenizer is None:
            raise ModuleFault("this server has no tokenizer")
        return self._tokenizer


def _require_few(length: int) -> None:
    if length > MAX_CONVERTED:
        raise ModuleFault(f"a call may convert {MAX_CONVERTED} bytes or tokens, not {length}")


def _put(instance: WasmInstance, content: NDArray[Any], out: int, capacity: int) -> int:
    """Writes the items if they fit; returns their number."""
    if len(content) <= capacity:
        instance.write(out, content.view(np.uint8))
    return len(content)


def _assembly_text(instance: WasmInstance, place: int) -> str:
    """Returns AssemblyScript's text (UTF-16, its bytes counted before it) after a colon; empty if there is none."""
    if not place:
        return ""
    try:
        (length,) = instance.read(place - 4, 4).view(np.uint32).tolist()
        return f": {instance.read(place, min(length, MAX_TEXT)).tobytes().decode('utf-16-le', 'replace')}"
    except ModuleFault:
        return ""
