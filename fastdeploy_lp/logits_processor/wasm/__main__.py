"""`python -m fastdeploy_lp.logits_processor.wasm MODULE.wasm ABOUT.json`: embeds a module's description of itself."""

from __future__ import annotations

import sys
from pathlib import Path

from fastdeploy_lp.logits_processor.wasm.errors import WasmError
from fastdeploy_lp.logits_processor.wasm.module import SECTION, WasmModule, require_wasm, with_section


def main() -> None:
    """Adds the section to the file; exits with a message for a file or description that is invalid."""
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    path, about = map(Path, sys.argv[1:])
    try:
        if WasmModule(path.stem, require_wasm(path.read_bytes())).section is not None:
            raise SystemExit(f"error: {path} has its section {SECTION} already")
        module = WasmModule(path.stem, with_section(path.read_bytes(), about.read_bytes()))
        _ = module.params_model
    except (OSError, WasmError) as error:
        raise SystemExit(f"error: {path}: {error}") from None
    path.write_bytes(module.content)


if __name__ == "__main__":
    main()
