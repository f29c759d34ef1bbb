"""Bounds on what a module may use."""

from __future__ import annotations

from dataclasses import dataclass

MEBIBYTE = 1 << 20
MAX_MODULE_BYTES = 8 * MEBIBYTE
"""Bytes of a module's file."""

MAX_INSTANCES = 4096
"""Instances in a process at the same time: one for each request that uses a module."""

TICK_SECONDS = 0.02
"""Time between two epochs of the engine, while a module runs."""


@dataclass(frozen=True)
class WasmLimits:
    """Bounds on one instance.

    step_fuel: of a step; a unit is about one instruction, or one byte of a bulk copy. init_fuel: of its start. memory:
    bytes of its linear memory. total_memory: of all instances of the process. step_seconds, init_seconds: a second
    bound, by the clock, for a machine on which fuel takes unusually long. table_elements: of its table. stack: bytes.
    """

    step_fuel: int = 10_000_000
    init_fuel: int = 1_000_000_000
    memory: int = 16 * MEBIBYTE
    total_memory: int = 1024 * MEBIBYTE
    step_seconds: float = 1.0
    init_seconds: float = 5.0
    table_elements: int = 10_000
    stack: int = 256 * 1024
