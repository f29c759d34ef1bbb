"""WebAssembly modules that process logits: their compilation, limits, interface and edits.

Needs the package `wasmtime` (extra `wasm`), imported when the first module is compiled.
"""
