"""Checks of a processor's use of tensors, memory and time."""

from __future__ import annotations

import linecache
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from fastdeploy_lp.config import StructuredOutputsConfig
from fastdeploy_lp.logits_processor.testing.harness import ProcessorHarness
from fastdeploy_lp.logits_processor.testing.report import StepTime
from fastdeploy_lp.logits_processor.testing.state import count_state, held_by, is_array
from fastdeploy_lp.logits_processor.testing.subject import SLOTS, Advice, Fault, Stage, Subject

# Without `__dlpack__`, which shares memory and, on the host, does not wait.
READS = (
    "numpy",
    "item",
    "tolist",
    "cpu",
    "__bool__",
    "__int__",
    "__float__",
    "__complex__",
    "__array__",
    "__index__",
    "__contains__",
    "__format__",
    "__repr__",
    "__str__",
    "__hex__",
    "__oct__",
    "__iter__",
)
PACKAGE = Path(__file__).parents[2]
HARNESS = Path(__file__).with_name("harness.py")
OWN_LINE = 60


@contextmanager
def watch_reads(on_read: Callable[[str], None]) -> Iterator[None]:
    """Calls `on_read` for every read of a Paddle tensor in the block, and of a torch tensor if torch is loaded."""
    from paddle import Tensor

    kinds: list[Any] = [Tensor]
    if "torch" in sys.modules:
        kinds.append(sys.modules["torch"].Tensor)
    changed = [(kind, name, vars(kind).get(name)) for kind in kinds for name in READS if hasattr(kind, name)]
    try:
        for kind, name, _ in changed:
            setattr(kind, name, _watched(name, getattr(kind, name), on_read))
        yield
    finally:
        for kind, name, own in changed:
            if own is None:
                delattr(kind, name)
            else:
                setattr(kind, name, own)


def _watched(name: str, read: Callable[..., Any], on_read: Callable[[str], None]) -> Callable[..., Any]:
    def watched(*args: Any, **kwargs: Any) -> Any:
        if not _is_on_host(args[0]):
            on_read(f"Tensor.{name} {_where()}".rstrip())
        return read(*args, **kwargs)

    return watched


def _is_on_host(tensor: Any) -> bool:
    """True for torch int64 tensors, such as Hugging Face's `input_ids`: they are made from lists on the host."""
    return type(tensor).__module__.partition(".")[0] == "torch" and str(tensor.dtype) == "torch.int64"


def _where() -> str:
    """Returns the author's line that read: the innermost one outside this package and the tensor libraries."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path == HARNESS:
            break
        own = PACKAGE in path.parents and "builtin" not in path.parts
        if not own and not {"paddle", "torch", "numpy", "transformers"} & set(path.parts):
            line = linecache.getline(str(path), frame.f_lineno).strip()
            return f"in {path.name}, line {frame.f_lineno}: {line[:OWN_LINE]}"
        frame = frame.f_back
    return ""


ROWS = (1, 8, 32)
VOCAB_SIZES = (49152, 151936)
TIMED_STEPS = 7
# With the request that has the last slot, a wave fills all of them.
WAVES, WAVE_REQUESTS = 24, SLOTS - 1


def host_sync(subject: Subject) -> None:
    """Checks that the host reads no tensor during a step."""
    stage, seen = _crowd(subject), list[str]()
    for _ in range(2):
        logits = _random_logits(stage.harness)
        with watch_reads(seen.append):
            stage.harness.update()
            stage.harness.apply(logits)
        for slot in stage.harness.active:
            stage.harness.slots.append_token(slot, 3)
    if seen:
        raise Fault(f"waits for the device by {seen[0]}; keep numbers on the host, or compute with tensors")


def in_place(subject: Subject) -> None:
    """Checks that `apply` returns the tensor that it got; raises Advice otherwise."""
    harness = _crowd(subject).harness
    logits = _random_logits(harness)
    harness.update()
    result = harness.apply(logits)
    if result is not logits and result.data_ptr() != logits.data_ptr():
        raise Advice(
            "returns a new tensor, which costs a copy of rows × vocab_size each step; change the logits in place"
        )


def keeps_logits(subject: Subject) -> None:
    """Checks that the processor keeps no logits, since the next step may write to them."""
    harness = _crowd(subject).harness
    logits = _random_logits(harness)
    begin = logits.data_ptr()
    end = begin + logits.size * logits.element_size()
    harness.update()
    result = harness.apply(logits)
    ends = {(begin, end), (result.data_ptr(), result.data_ptr() + result.size * result.element_size())}
    for found in held_by(harness.entry.processor):
        if is_array(found) and any(low <= _address(found) < high for low, high in ends):
            raise Fault("keeps the logits of a step, which others write to and which take memory; copy what it needs")


def finished_requests(subject: Subject) -> None:
    """Checks that the processor's state does not keep growing with the number of finished requests.

    A bounded memory of requests that may resume after a preemption is full at the first measurement.
    """
    stage, sizes = subject.stage(), []
    for wave in range(WAVES):
        for index in range(WAVE_REQUESTS):
            args = subject.using[index % len(subject.using)].args
            stage.enter(subject.script(f"wave-{wave}-{index}", args, length=2))
        stage.run(2)
        # The processor is called only while a request has a row, and must see that the others have left.
        stage.enter(subject.plain, SLOTS - 1)
        stage.run(1)
        if wave + 1 in (WAVES // 2, WAVES):
            sizes.append(count_state(stage.harness.entry.processor))
        stage.leave(SLOTS - 1)
    grown, finished = sizes[1] - sizes[0], WAVES // 2 * WAVE_REQUESTS
    if grown >= finished:
        raise Fault(f"keeps state of requests that have ended: {finished} more of them, {grown} more elements")


def speed(subject: Subject) -> None:
    """Measures a step for each size, with all rows using the processor, and stores the times in `subject.times`."""
    budget = 1000 * StructuredOutputsConfig().time_budget
    for vocab_size in VOCAB_SIZES:
        for rows in ROWS:
            seconds = _step_seconds(subject, rows, max(vocab_size, subject.vocab_size))
            subject.times.append(StepTime(rows, vocab_size, 1000 * seconds))
    worst = max(subject.times, key=lambda each: each.milliseconds)
    if worst.milliseconds > budget:
        size = f"{worst.rows} rows of {worst.vocab_size} tokens"
        raise Advice(f"takes {worst.milliseconds:.0f} ms for {size}; a server counts {budget:g} ms as a fault")


def _step_seconds(subject: Subject, rows: int, vocab_size: int) -> float:
    harness = subject.harness(max_num_seqs=rows, vocab_size=vocab_size)
    for row in range(rows):
        script = subject.using[row % len(subject.using)]
        harness.enter(f"{row}", script.args, prompt=script.prompt, output=list(script.tokens), params=script.params)
    logits = harness.tensor(np.tile(harness.random_row("timed", 0), (rows, 1)))
    seconds = []
    for _ in range(TIMED_STEPS):
        began = time.perf_counter()
        harness.update()
        logits = harness.apply(logits)
        seconds.append(time.perf_counter() - began)
        for slot in harness.active:
            harness.slots.append_token(slot, 3)
    return statistics.median(seconds)


def _crowd(subject: Subject) -> Stage:
    """Returns a stage with all requests, after one step."""
    stage = subject.stage()
    for script in subject.scripts:
        stage.enter(script)
    stage.run(1)
    return stage


def _random_logits(harness: ProcessorHarness) -> Any:
    return harness.tensor(np.stack([harness.random_row("crowd", slot) for slot in harness.active]))


def _address(array: Any) -> int:
    if isinstance(array, np.ndarray):
        return array.ctypes.data
    return int(array.data_ptr())
