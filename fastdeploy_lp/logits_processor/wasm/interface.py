"""The functions that a module exports and imports; `include/logits_processor.h` and docs/wasm.md describe them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastdeploy_lp.logits_processor.wasm.errors import WasmError

if TYPE_CHECKING:
    from wasmtime import Module

IMPORTS = "fastdeploy_lp"
"""Name of the module that the functions are imported from."""

I32, I64 = "i32", "i64"
REQUIRED = {
    "lp_alloc": ((I32,), (I32,)),
    "lp_init": ((I32, I32, I32, I32, I32, I64), (I32,)),
}
STEPS = {
    "lp_step": ((I32, I32), (I32,)),
    "lp_step_logits": ((I32, I32, I32), (I32,)),
}
OPTIONAL = {"_initialize": ((), ())}
HOST = {
    (IMPORTS, "fail"): ((I32, I32), ()),
    (IMPORTS, "tokenize"): ((I32, I32, I32, I32), (I32,)),
    (IMPORTS, "detokenize"): ((I32, I32, I32, I32), (I32,)),
    (IMPORTS, "token_bytes"): ((I32, I32, I32), (I32,)),
    (IMPORTS, "vocabulary"): ((I32, I32, I32), (I32,)),
    (IMPORTS, "rewindable"): ((), (I32,)),
    # AssemblyScript's programs report their own errors by it.
    ("env", "abort"): ((I32, I32, I32, I32), ()),
}
MAX_EXPORTS = 256


def require_interface(module: Module) -> frozenset[str]:
    """Returns the names of a module's exports; raises WasmError unless it has the documented interface."""
    from wasmtime import FuncType, MemoryType

    for each in module.imports:
        place = (each.module, each.name or "")
        wanted = HOST.get(place)
        if wanted is None:
            known = ", ".join(".".join(name) for name in HOST)
            raise WasmError(f"imports {place[0]}.{place[1]}, which does not exist here; it may import {known}")
        if not isinstance(each.type, FuncType) or _signature(each.type) != wanted:
            raise WasmError(f"imports {place[0]}.{place[1]} with other types than {_shown(wanted)}")
    exports = {each.name: each.type for each in module.exports}
    if len(exports) > MAX_EXPORTS:
        raise WasmError(f"has {len(exports)} exports; at most {MAX_EXPORTS} are allowed")
    if not isinstance(exports.get("memory"), MemoryType):
        raise WasmError("does not export its memory, as `memory`")
    for name, wanted in REQUIRED.items():
        _require(exports, name, wanted)
    steps = [name for name in STEPS if name in exports]
    if len(steps) != 1:
        found = "both" if steps else "neither"
        raise WasmError(f"must export either lp_step or lp_step_logits; it exports {found}")
    _require(exports, steps[0], STEPS[steps[0]])
    for name in OPTIONAL.keys() & exports.keys():
        _require(exports, name, OPTIONAL[name])
    return frozenset(exports)


def _require(exports: dict[str, Any], name: str, wanted: Any) -> None:
    from wasmtime import FuncType

    if name not in exports:
        raise WasmError(f"does not export {name}, a function {_shown(wanted)}")
    if not isinstance(exports[name], FuncType) or _signature(exports[name]) != wanted:
        raise WasmError(f"exports {name} with another type than {_shown(wanted)}")


def _signature(kind: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return tuple(map(str, kind.params)), tuple(map(str, kind.results))


def _shown(signature: tuple[tuple[str, ...], tuple[str, ...]]) -> str:
    arguments, results = signature
    return f"({', '.join(arguments)}) -> ({', '.join(results)})"
