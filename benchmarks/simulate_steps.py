"""Steps of a real engine with their shapes and seconds: `simulate.py calibrate` starts it in a worker's environment."""

from __future__ import annotations

import gc
import sys
import time
from itertools import count
from pathlib import Path

import msgspec
import numpy as np
from simulation.calibration import Steps, StepsJob
from simulation.costs import StepShape
from simulation.noting import NotingScheduler
from simulation.trace import Lengths

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor import LogitsProcessorChain, Selection, load_processors
from fastdeploy_lp.messages import AddRequest, encode
from fastdeploy_lp.request.sampling_params import SettledParams
from fastdeploy_lp.startup.engine_args import EngineArgs
from fastdeploy_lp.worker.engine_core import EngineCore

LEVELS = (1, 2, 4, 8, 16, 24, 32)
# Every level has its turn so often, so that a machine that is slower for a while is so for all of them.
TURNS = 5
# Outputs are short, so that many steps have both prompts and rows that generate.
PROMPT, OUTPUT = Lengths(200.0, 1.2, 1500), Lengths(50.0, 0.8, 300)
# Share of a turn that is not measured.
WARM_UP = 0.1
FEWEST = 4
SEED = 0


class Workload:
    """An engine that always has the same number of sequences in flight."""

    def __init__(self, fd_config: FDConfig) -> None:
        self._engine = EngineCore(
            fd_config, LogitsProcessorChain(load_processors(["LogitBiasLogitsProcessor"]), fd_config)
        )
        self._scheduler = NotingScheduler(fd_config.scheduler_config, self._engine.blocks, self._engine.worker)
        self._engine.scheduler = self._scheduler
        self._vocab_size = fd_config.model_config.vocab_size
        self._random = np.random.default_rng(SEED)
        self._numbers = count()
        self._in_flight = 0

    def run(self, in_flight: int, seconds: float) -> Steps:
        """Steps for so long, but no fewer than a few."""
        steps = Steps([], [])
        began = time.perf_counter()
        while (now := time.perf_counter() - began) < seconds or len(steps.seconds) < FEWEST:
            while self._in_flight < in_flight:
                self._add()
            before = time.perf_counter()
            outputs = self._engine.step()
            encode(outputs)
            taken = time.perf_counter() - before
            self._in_flight -= sum(step.finish_reason is not None for step in outputs.steps)
            if now > WARM_UP * seconds:
                steps.shapes.append(StepShape.of(self._scheduler.last))
                steps.seconds.append(taken)
        return steps

    def _add(self) -> None:
        prompt = int(PROMPT.draw(self._random, 1)[0])
        params = SettledParams(temperature=0, ignore_eos=True, max_tokens=int(OUTPUT.draw(self._random, 1)[0]))
        tokens = self._random.integers(0, self._vocab_size, prompt).tolist()
        self._engine.add(AddRequest(str(next(self._numbers)), tokens, params, Selection()))
        self._in_flight += 1


def main(argv: list[str]) -> int:
    """Reads the job from the first path, write the steps to the second."""
    job_path, result_path = map(Path, argv)
    job = msgspec.json.decode(job_path.read_bytes(), type=StepsJob)
    args = EngineArgs(job.model, quantization=job.quantization, max_num_seqs=max(LEVELS))
    workload = Workload(args.create_fd_config(show_progress=False))
    gc.collect()
    gc.freeze()
    all_steps = Steps([], [])
    workload.run(max(LEVELS), job.seconds / len(LEVELS) / 2)
    for level in LEVELS * TURNS:
        steps = workload.run(level, job.seconds / len(LEVELS) / TURNS)
        all_steps.shapes.extend(steps.shapes)
        all_steps.seconds.extend(steps.seconds)
    result_path.write_bytes(msgspec.json.encode(all_steps))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
