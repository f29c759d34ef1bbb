"""Measures the engine in one precision: `engine.py` starts it in a worker's environment, one process a precision."""

from __future__ import annotations

import functools
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
from engine_floor import MemoryStream, OneDnnRows, OurProducts, Products, Shape, stream_bytes
from engine_probe import StepProbe, counted_reads
from engine_report import FULL, PARTS, Decode, Job, Measured, Memory, Prefill, Processors, Timing

from fastdeploy_lp import SamplingParams
from fastdeploy_lp.config import EngineArgs, FDConfig
from fastdeploy_lp.logits_processor import LogitsProcessorChain, Selection, load_processors
from fastdeploy_lp.messages import AddRequest, encode
from fastdeploy_lp.model_executor.layers.quantization import ACTIVATION_DIGITS
from fastdeploy_lp.model_executor.models.dimensions import Dimensions
from fastdeploy_lp.model_executor.ops import compiled_ops
from fastdeploy_lp.worker.engine_core import EngineCore

LOGIT_BIAS, ENTRIES = "LogitBiasLogitsProcessor", 8
PROCESSOR_PROMPT = 16
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

    def add(self, prompt: list[int], max_tokens: int, *, biased: bool = False) -> str:
        """Queue a greedy request."""
        request_id = next(self._ids)
        params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=max_tokens)
        self.engine.add(AddRequest(request_id, prompt, params, self._biases() if biased else Selection()))
        return request_id

    def step(self) -> None:
        """One step as the worker does it, its message encoded."""
        encode(self.engine.step())

    def start(self, prompts: list[list[int]], *, biased: bool = False) -> list[str]:
        """Queue requests that run until they are ended, and step until all of them decode together."""
        ids = [self.add(prompt, self.max_model_len - len(prompt), biased=biased) for prompt in prompts]
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


def measure(job: Job) -> Measured:
    """Load the model and measure everything that the job asks for."""
    fd_config = EngineArgs(
        job.model, quantization=job.quantization, max_num_seqs=max(job.sizes.batches)
    ).create_fd_config(show_progress=False)
    skipped: list[str] = []
    with StepProbe().installed() as probe:
        bench = Bench(job, fd_config, probe)
        loaded = _peak_rss()
        prefill = measure_prefill(bench, skipped)
        reads = count_reads(bench)
        peak = _peak_rss()
        floors = Floors(bench, skipped)
        decode = measure_decode(bench, floors, skipped)
        processors = measure_processors(bench) if job.processors else None
    streamed = [row.floors["bandwidth"] for row in decode if "bandwidth" in row.floors]
    return Measured(
        precision=job.quantization or FULL,
        threads=int(os.environ["OMP_NUM_THREADS"]),
        prefill=prefill,
        decode=decode,
        memory=Memory(loaded, peak, floors.weight_bytes, bench.kv_bytes_per_token),
        device_reads_per_step=reads,
        bandwidth_gb_per_s=max(floors.bandwidths) / 1e9 if streamed else None,
        processors=processors,
        skipped=skipped,
    )


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


class Floors:
    """What steps are compared with: the products alone, by us and by oneDNN, and reading memory."""

    def __init__(self, bench: Bench, skipped: list[str]) -> None:
        self._job, self._kv_bytes_per_token, self._skipped = bench.job, bench.kv_bytes_per_token, skipped
        self._digits = ACTIVATION_DIGITS[bench.job.quantization]
        self._shapes = step_shapes(bench.dims)
        self.bandwidths: list[float] = []
        ops = compiled_ops()
        self._ours: OurProducts | None = None
        if bench.job.native is not None and ops is not None:
            native = Path(bench.job.native)
            self._ours = OurProducts(native, ops, self._shapes, self._digits)
            self._stream = MemoryStream(native, stream_bytes())
        else:
            skipped.append("floors and the share of the products: no compiled operators")

    @property
    def weight_bytes(self) -> int | None:
        """Bytes of weights that one step reads; None without compiled operators."""
        return None if self._ours is None else self._ours.weight_bytes

    def calls(self, rows: int) -> dict[str, Call]:
        """What to time beside steps of so many rows."""
        if self._ours is None:
            return {}
        products: dict[str, Products] = {"our products": self._ours.rows(rows)}
        onednn = self._onednn(rows)
        if onednn is not None:
            products["oneDNN products"] = onednn
        return {"bandwidth": self._stream.read} | {name: each.multiply for name, each in products.items()}

    def finish(self, timings: dict[str, Timing], rows: int, context: float) -> dict[str, Timing]:
        """The time of reading the buffer becomes that of reading what these steps read."""
        if self._ours is None:
            return timings
        read = timings["bandwidth"]
        self.bandwidths.append(1000 * self._stream.size / read.best)
        share = (self._ours.weight_bytes + rows * context * self._kv_bytes_per_token) / self._stream.size
        return {**timings, "bandwidth": Timing([share * ms for ms in read.turns], share * read.best)}

    def _onednn(self, rows: int) -> Products | None:
        if self._job.onednn is None:
            return None
        try:
            # Two digits of an activation are two rows of 8-bit numbers.
            return OneDnnRows(Path(self._job.onednn), self._shapes, rows * max(self._digits, 1), int8=self._digits > 0)
        except RuntimeError as error:
            self._skipped.append(f"oneDNN at {rows} rows: {error}")
            return None


def step_shapes(dims: Dimensions) -> list[Shape]:
    """The matrix products of one decode step, in order."""
    heads = (dims.num_heads + 2 * dims.num_kv_heads) * dims.head_dim
    layer = [
        Shape(dims.hidden_size, heads),
        Shape(dims.num_heads * dims.head_dim, dims.hidden_size),
        Shape(dims.hidden_size, 2 * dims.intermediate_size),
        Shape(dims.intermediate_size, dims.hidden_size),
    ]
    return [*layer * dims.num_layers, Shape(dims.hidden_size, dims.vocab_size)]


def measure_decode(bench: Bench, floors: Floors, skipped: list[str]) -> list[Decode]:
    """Every batch at every context that fits; the floors of a batch are made once."""
    sizes = bench.job.sizes
    steps = sizes.turns * (sizes.per_turn + 1)
    prompts = [bench.random_prompt(max(sizes.contexts)) for _ in range(max(sizes.batches))]
    decode = []
    for batch in sizes.batches:
        calls = floors.calls(batch)
        for context in sizes.contexts:
            # The context grows during the measurement; its middle is what was asked for.
            length = max(context - steps // 2, 1)
            if why := _why_not(bench, batch, length + steps):
                skipped.append(f"decode of {batch} rows at {context}: {why}")
            else:
                decode.append(measure_steps(bench, [prompt[:length] for prompt in prompts[:batch]], floors, calls))
    return decode


def _why_not(bench: Bench, batch: int, tokens: int) -> str | None:
    if tokens >= bench.max_model_len:
        return f"model length {bench.max_model_len}"
    needed = batch * tokens * bench.kv_bytes_per_token
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return f"{needed >> 20} MiB of KV cache, {available >> 20} free" if needed > 0.8 * available else None


def measure_steps(bench: Bench, prompts: list[list[int]], floors: Floors, calls: Mapping[str, Call]) -> Decode:
    """Steps of these prompts, in turns with the same passes alone and with the floors."""
    ids = bench.start(prompts)
    parts: dict[str, list[float]] = {part: [] for part in PARTS}
    contexts: list[float] = []

    def step() -> None:
        bench.probe.clear()
        bench.step()
        for part, seconds in parts.items():
            seconds.append(bench.probe.seconds[part])
        contexts.append(bench.probe.mean_context)

    sizes = bench.job.sizes
    timings = in_turns(
        {"step": step, "passes": bench.probe.repeat_pass, **calls}, turns=sizes.turns, per_turn=sizes.per_turn
    )
    bench.end(ids)
    context = statistics.mean(contexts)
    own, passes = timings.pop("step"), timings.pop("passes")
    parts_ms = {part: 1000 * statistics.median(seconds) for part, seconds in parts.items()}
    return Decode(len(prompts), context, own, passes, parts_ms, floors.finish(timings, len(prompts), context))


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
    """The largest batch without and with biases in all rows, a turn of each a round."""
    sizes, chain = bench.job.sizes, []
    batch, per_turn = max(sizes.batches), 4 * sizes.per_turn
    taken: dict[bool, list[float]] = {False: [], True: []}
    prompts = [bench.random_prompt(PROCESSOR_PROMPT) for _ in range(batch)]
    for number in range(2 * sizes.rounds):
        # Who comes first changes, so that a drift of the machine's speed favours nobody.
        for biased in (False, True) if number % 2 else (True, False):
            ids = bench.start(prompts, biased=biased)
            for _ in range(per_turn):
                bench.probe.clear()
                taken[biased].append(_milliseconds(bench.step))
                if biased:
                    chain.append(1000 * bench.probe.seconds["chain"])
            bench.end(ids)
    off, on = (functools.partial(_by_turn, per_turn=per_turn)(taken[biased]) for biased in (False, True))
    return Processors(batch, off, on, statistics.median(chain))


def _by_turn(taken: list[float], *, per_turn: int) -> Timing:
    turns = [taken[first : first + per_turn] for first in range(0, len(taken), per_turn)]
    return Timing([statistics.median(turn) for turn in turns], min(taken))


def _peak_rss() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main(argv: list[str]) -> int:
    """Read the job from the first path, write what was measured to the second."""
    job_path, result_path = map(Path, argv)
    job = msgspec.json.decode(job_path.read_bytes(), type=Job)
    result_path.write_bytes(msgspec.json.encode(measure(job)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
