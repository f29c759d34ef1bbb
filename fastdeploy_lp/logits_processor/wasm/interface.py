"""The functions that a module exports and imports; `include/logits_processor.h` and docs/wasm.md describe them."""

from __future__ import annotations

from fastdeploy_lp.logits_processor.wasm.errors import WasmError
from fastdeploy_lp.logits_processor.wasm.signatures import MEMORY, Exported, ModuleTypes, Signature

IMPORTS = "fastdeploy_lp"
"""Name of the module that the functions are imported from."""

I32, I64 = "i32", "i64"
REQUIRED = {
    "lp_alloc": Signature((I32,), (I32,)),
    "lp_init": Signature((I32, I32, I32, I32, I32, I64), (I32,)),
}
STEPS = {
    "lp_step": Signature((I32, I32), (I32,)),
    "lp_step_logits": Signature((I32, I32, I32), (I32,)),
}
OPTIONAL = {"_initialize": Signature((), ())}
HOST = {
    (IMPORTS, "fail"): Signature((I32, I32), ()),
    (IMPORTS, "tokenize"): Signature((I32, I32, I32, I32), (I32,)),
    (IMPORTS, "detokenize"): Signature((I32, I32, I32, I32), (I32,)),
    (IMPORTS, "token_bytes"): Signature((I32, I32, I32), (I32,)),
    (IMPORTS, "vocabulary"): Signature((I32, I32, I32), (I32,)),
    (IMPORTS, "rewindable"): Signature((), (I32,)),
    # AssemblyScript's programs report their own errors by it.
    ("env", "abort"): Signature((I32, I32, I32, I32), ()),
}
MAX_EXPORTS = 256


def require_interface(types: ModuleTypes) -> None:
    """Raises WasmError unless a module has the documented interface."""
    for each in types.imports:
        wanted = HOST.get((each.module, each.name))
        if wanted is None:
            known = ", ".join(".".join(name) for name in HOST)
            raise WasmError(f"imports {each.module}.{each.name}, which does not exist here; it may import {known}")
        if each.signature != wanted:
            raise WasmError(f"imports {each.module}.{each.name} with other types than {wanted}")
    exports = types.exports
    if len(exports) > MAX_EXPORTS:
        raise WasmError(f"has {len(exports)} exports; at most {MAX_EXPORTS} are allowed")
    if "memory" not in exports or exports["memory"].kind != MEMORY:
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


def _require(exports: dict[str, Exported], name: str, wanted: Signature) -> None:
    if name not in exports:
        raise WasmError(f"does not export {name}, a function {wanted}")
    if exports[name].signature != wanted:
        raise WasmError(f"exports {name} with another type than {wanted}")
