"""Measures the engine in one precision: `engine.py` starts it in a worker's environment, one process a precision."""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path

import msgspec
import numpy as np
from engine_floors import Floors
from engine_probe import StepProbe, counted_reads
from engine_report import (
    FULL,
    HOST,
    PARTS,
    Decode,
    Guided,
    Job,
    Measured,
    Memory,
    Prefill,
    Processors,
    Timing,
    precision_options,
)

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.config.tile_choice import tile_choice
from fastdeploy_lp.logits_processor import LogitsProcessorChain, Selection, load_processors
from fastdeploy_lp.messages import AddRequest, encode
from fastdeploy_lp.model_executor.models.dimensions import Dimensions
from fastdeploy_lp.model_executor.ops import compiled_ops
from fastdeploy_lp.model_executor.ops.tiles import choose_tiles, describe_instructions
from fastdeploy_lp.request.sampling_params import SettledParams
from fastdeploy_lp.startup.engine_args import EngineArgs
from fastdeploy_lp.worker.engine_core import EngineCore

LOGIT_BIAS, ENTRIES = "LogitBiasLogitsProcessor", 8
PROCESSOR_PROMPT = 16
# Objects of this schema, one after the other: with the end of sequence banned they never end.
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["new", "old", "big", "small"]}, "maxItems": 4},
        "address": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 40}},
            "required": ["city"],
        },
    },
    "required": ["name", "age", "tags", "address"],
    "additionalProperties": False,
}
OBJECTS = f"start: object+\nobject: %json {json.dumps(SCHEMA)}\n"
# A step that never comes to decode all rows is a fault of this file or of the engine, not a reason to wait for ever.
MOST_STEPS_TO_START = 5000

Call = Callable[[], object]


class Bench:
    """An engine with LogitBias declared, and the probe in it."""

    def __init__(self, job: Job, fd_config: FDConfig, probe: StepProbe) -> None:
        self.job, self.fd_config, self.probe = job, fd_config, probe
        self.engine = EngineCore(fd_config, LogitsProcessorChain(load_processors([LOGIT_BIAS]), fd_config))
        self.random = np.random.default_rng(0)
        self._ids = (str(number) for number in count())

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and output together."""
        return self.fd_config.model_config.max_model_len

    @property
    def dims(self) -> Dimensions:
        """The model's sizes."""
        return Dimensions.from_hf_config(self.fd_config.model_config.hf_config)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of all layers' keys and values of one token."""
        dims = self.dims
        return (
            2
            * dims.num_layers
            * dims.num_kv_heads
            * dims.head_dim
            * np.dtype(self.fd_config.cache_config.dtype).itemsize
        )

    def random_prompt(self, length: int) -> list[int]:
        """Tokens that no other prompt begins with, so that no prefix cache knows them."""
        return [int(token) for token in self.random.integers(0, self.dims.vocab_size, length)]

    def add(self, prompt: list[int], max_tokens: int, *, biased: bool = False, guided: bool | None = None) -> str:
        """Queues a greedy request that runs to its limit; `guided` is None unless grammars are what is measured."""
        request_id = next(self._ids)
        params = SettledParams(temperature=0, ignore_eos=True, max_tokens=max_tokens)
        if guided is not None:
            # The grammar would allow the end here; also banned without a grammar, so that this makes no difference.
            params.bad_words_token_ids = [[end] for end in self.fd_config.model_config.eos_token_ids]
        selection, grammar = self._biases() if biased else Selection(), OBJECTS if guided else None
        self.engine.add(AddRequest(request_id, prompt, params, selection, grammar))
        return request_id

    def step(self) -> None:
        """One step as the worker does it, its message encoded."""
        encode(self.engine.step())

    def start(self, prompts: list[list[int]], *, biased: bool = False, guided: bool | None = None) -> list[str]:
        """Queue requests that run until they are ended, and step until all of them decode together."""
        room = self.max_model_len
        ids = [self.add(prompt, room - len(prompt), biased=biased, guided=guided) for prompt in prompts]
        for _ in range(MOST_STEPS_TO_START):
            self.step()
            if self.probe.decoding == len(prompts):
                return ids
        raise RuntimeError(f"{len(prompts)} rows did not come to decode together")

    def end(self, ids: list[str]) -> None:
        """Drop requests and finish what is left."""
        self.engine.abort(ids)
        while self.engine.has_work:
            self.step()

    def _biases(self) -> Selection:
        tokens = self.random.choice(self.dims.vocab_size, ENTRIES, replace=False).tolist()
        biases = self.random.standard_normal(ENTRIES).tolist()
        return Selection(flat={"logit_bias": dict(zip(tokens, biases, strict=True))})


def measure(job: Job, fd_config: FDConfig) -> Measured:
    """Loads the model and measure everything that the job asks for."""
    skipped: list[str] = []
    with StepProbe().installed() as probe:
        bench = Bench(job, fd_config, probe)
        loaded = _peak_rss()
        prefill = measure_prefill(bench, skipped)
        reads = count_reads(bench)
        peak = _peak_rss()
        floors = Floors(job, bench.dims, probe.weight_formats, bench.kv_bytes_per_token, skipped)
        decode = measure_decode(bench, floors, skipped)
        processors = measure_processors(bench) if job.processors else None
        guided = measure_guided(bench) if job.guided else None
    return Measured(
        precision=job.quantization or FULL,
        threads=int(os.environ["OMP_NUM_THREADS"]),
        prefill=prefill,
        decode=decode,
        memory=Memory(loaded, peak, floors.weight_bytes, bench.kv_bytes_per_token),
        device_reads_per_step=reads,
        processors=processors,
        guided=guided,
        skipped=skipped,
        instructions=_instructions(),
    )


def _instructions() -> str | None:
    ops = compiled_ops()
    return None if ops is None else describe_instructions(ops, choose_tiles(ops, tile_choice()))


def measure_prefill(bench: Bench, skipped: list[str]) -> list[Prefill]:
    """Prompts of each length, one at a time; the lengths take turns."""
    lengths = [length for length in bench.job.sizes.prompts if length < bench.max_model_len]
    skipped += [
        f"prompt of {n}: model length {bench.max_model_len}" for n in bench.job.sizes.prompts if n not in lengths
    ]
    seconds: dict[int, list[float]] = {length: [] for length in lengths}
    # The first round warms up.
    for number in range(1 + bench.job.sizes.rounds):
        for length in lengths:
            bench.add(bench.random_prompt(length), max_tokens=1)
            began = time.perf_counter()
            while bench.engine.has_work:
                bench.step()
            if number:
                seconds[length].append(time.perf_counter() - began)
    return [Prefill(n, n / statistics.median(taken), n / min(taken)) for n, taken in seconds.items()]


def count_reads(bench: Bench) -> int:
    """Reads of device data in one decode step of all rows; also the largest batch's first run."""
    ids = bench.start([bench.random_prompt(PROCESSOR_PROMPT) for _ in range(max(bench.job.sizes.batches))])
    with counted_reads() as reads:
        bench.step()
    bench.end(ids)
    return len(reads)


def measure_decode(bench: Bench, floors: Floors, skipped: list[str]) -> list[Decode]:
    """Every batch at every context that fits; the floors of a batch are made once."""
    sizes = bench.job.sizes
    steps = sizes.turns * (sizes.per_turn + 1)
    prompts = [bench.random_prompt(max(sizes.contexts)) for _ in range(max(sizes.batches))]
    decode = []
    for batch in sizes.batches:
        products = floors.products(batch)
        for context in sizes.contexts:
            # The context grows during the measurement; its middle is what was asked for.
            length = max(context - steps // 2, 1)
            if why := _why_not(bench, batch, length + steps):
                skipped.append(f"decode of {batch} rows at {context}: {why}")
            else:
                reading, size = floors.reading(batch, context)
                measured = [prompt[:length] for prompt in prompts[:batch]]
                attention = floors.attention(batch, context)
                decode.append(measure_steps(bench, measured, {**reading, **products, **attention}, size))
    return decode


def _why_not(bench: Bench, batch: int, tokens: int) -> str | None:
    if tokens >= bench.max_model_len:
        return f"model length {bench.max_model_len}"
    needed = batch * tokens * bench.kv_bytes_per_token
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return f"{needed >> 20} MiB of KV cache, {available >> 20} free" if needed > 0.8 * available else None


def measure_steps(bench: Bench, prompts: list[list[int]], floors: Mapping[str, Call], bytes_read: int) -> Decode:
    """Steps of these prompts, in turns with the same passes alone and with the floors, one of which reads so much."""
    ids = bench.start(prompts)
    sizes, parts = bench.job.sizes, StepParts(bench)
    timings = in_turns(
        {"step": parts.step, "passes": bench.probe.repeat_pass, **floors}, turns=sizes.turns, per_turn=sizes.per_turn
    )
    bench.end(ids)
    context = statistics.mean(parts.contexts)
    own, passes = timings.pop("step"), timings.pop("passes")
    return Decode(len(prompts), context, own, passes, parts.medians(sizes.per_turn), timings, bytes_read)


class StepParts:
    """Steps with the milliseconds of their parts and the context of their rows."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._taken: dict[str, list[float]] = {part: [] for part in (*PARTS, HOST)}
        self.contexts: list[float] = []

    def step(self) -> None:
        """One step."""
        probe = self._bench.probe
        probe.clear()
        total = _milliseconds(self._bench.step)
        parts = {part: 1000 * probe.seconds[part] for part in PARTS}
        for part, taken in {**parts, HOST: total - sum(parts.values())}.items():
            self._taken[part].append(taken)
        self.contexts.append(probe.mean_context)

    def medians(self, per_turn: int) -> dict[str, float]:
        """By part, the steps that do not count in `in_turns` left out."""
        return {
            part: statistics.median(ms for step, ms in enumerate(taken) if step % (per_turn + 1))
            for part, taken in self._taken.items()
        }


def in_turns(calls: Mapping[str, Call], *, turns: int, per_turn: int) -> dict[str, Timing]:
    """Each call `per_turn` times in a row, turn after turn, so that noise meets all alike.

    The first call of a turn does not count: it brings its data back and finds other threads' last spinning.
    """
    medians: dict[str, list[float]] = {name: [] for name in calls}
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(turns):
        for name, call in calls.items():
            call()
            taken = [_milliseconds(call) for _ in range(per_turn)]
            medians[name].append(statistics.median(taken))
            best[name] = min(best[name], *taken)
    return {name: Timing(values, best[name]) for name, values in medians.items()}


def _milliseconds(call: Call) -> float:
    began = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - began)


def measure_processors(bench: Bench) -> Processors:
    """The largest batch without and with biases in all rows."""
    batch, off, on, chain_ms = _off_and_on(bench, "chain", lambda prompts, on: bench.start(prompts, biased=on))
    return Processors(batch, off, on, chain_ms)


def measure_guided(bench: Bench) -> Guided:
    """The largest batch without and with a grammar in all rows."""
    batch, off, on, mask_ms = _off_and_on(bench, "mask", lambda prompts, on: bench.start(prompts, guided=on))
    return Guided(batch, off, on, mask_ms)


def _off_and_on(
    bench: Bench, part: str, start: Callable[[list[list[int]], bool], list[str]]
) -> tuple[int, Timing, Timing, float]:
    """The batch, its steps without and with something, a turn of each a round, and the part's milliseconds with it."""
    sizes, of_part = bench.job.sizes, list[float]()
    batch, per_turn = max(sizes.batches), 4 * sizes.per_turn
    taken: dict[bool, list[float]] = {False: [], True: []}
    prompts = [bench.random_prompt(PROCESSOR_PROMPT) for _ in range(batch)]
    for number in range(2 * sizes.rounds):
        # Alternate the order, so that a drift of the machine's speed favours neither side.
        for on in (False, True) if number % 2 else (True, False):
            ids = start(prompts, on)
            for _ in range(per_turn):
                bench.probe.clear()
                taken[on].append(_milliseconds(bench.step))
                if on:
                    of_part.append(1000 * bench.probe.seconds[part])
            bench.end(ids)
    off, on_timing = (_by_turn(taken[on], per_turn) for on in (False, True))
    return batch, off, on_timing, statistics.median(of_part)


def _by_turn(taken: list[float], per_turn: int) -> Timing:
    turns = [taken[first : first + per_turn] for first in range(0, len(taken), per_turn)]
    return Timing([statistics.median(turn) for turn in turns], min(taken))


def _peak_rss() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main(argv: list[str]) -> int:
    """Reads the job from the first path, write what was measured to the second."""
    job_path, result_path = map(Path, argv)
    job = msgspec.json.decode(job_path.read_bytes(), type=Job)
    args = EngineArgs(job.model, **precision_options(job.quantization), max_num_seqs=max(job.sizes.batches))
    result_path.write_bytes(msgspec.json.encode(measure(job, args.create_fd_config(show_progress=False))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
