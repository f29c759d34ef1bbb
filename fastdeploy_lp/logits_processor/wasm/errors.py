"""Errors of modules."""

from __future__ import annotations


class WasmError(ValueError):
    """A file that is no usable module; the message states the reason."""


class ModuleFault(RuntimeError):  # noqa: N818 - a fault of a processor, in this package's words
    """A call of a module failed: it trapped, exceeded a limit, or returned something invalid."""


class ModuleRefusal(ValueError):  # noqa: N818 - as above
    """The module itself refused its parameters, through `fail` in its init."""
