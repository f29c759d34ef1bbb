"""The processor under check, and its requests."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.logits_processor.chain.recorded_actions import SlotActions
from fastdeploy_lp.logits_processor.declared import DeclaredProcessor
from fastdeploy_lp.logits_processor.stages import LOGITS
from fastdeploy_lp.logits_processor.testing.arguments import integers_in
from fastdeploy_lp.logits_processor.testing.harness import ProcessorHarness, Row, StepCount
from fastdeploy_lp.logits_processor.testing.loading import resized
from fastdeploy_lp.logits_processor.testing.report import StepTime
from fastdeploy_lp.request.sampling_params import SamplingParams

SLOTS = 8
MAX_MODEL_LEN = 64
LENGTH = 6
PLAIN = 2
CROWD = 24
# Above differences from the order of a sum, and far below the error of a wrong row.
TOLERANCE = 1e-4

Rows = dict[tuple[str, int], Row]
"""(request id, number of output tokens before it) → its row [vocab_size]."""

Acts = dict[tuple[str, int], SlotActions]
"""(request id, number of output tokens before it) → the processor's actions in that step."""


class Fault(Exception):  # noqa: N818 - a finding, no error of ours
    """The processor breaks a rule; the message states the fault and its fix."""


class Advice(Exception):  # noqa: N818 - a finding, no error of ours
    """The processor could be better."""


@dataclass(frozen=True)
class Script:
    """A request with the tokens that it will generate, independent of the logits."""

    request_id: str
    args: dict[str, Any] | None
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    params: SamplingParams


class Stage:
    """A harness that runs scripted requests.

    `rows` are all rows that the processor has returned, `acts` all its actions. A request continues after its finish,
    so that the checks of rows do not depend on it.
    """

    def __init__(self, harness: ProcessorHarness) -> None:
        self.harness = harness
        self.rows: Rows = {}
        self.acts: Acts = {}
        self._scripts: dict[str, Script] = {}

    def enter(
        self, script: Script, slot: int | None = None, *, output: list[int] | None = None, held: bool = False
    ) -> int:
        """Puts the request into a slot, with the tokens that it has generated before."""
        self._scripts[script.request_id] = script
        return self.harness.enter(
            script.request_id,
            script.args,
            prompt=script.prompt,
            output=output,
            params=script.params,
            slot=slot,
            held=held,
        )

    def leave(self, slot: int) -> list[int]:
        """Removes the request; returns the tokens that it has generated."""
        return self.harness.leave(slot).output

    def run(self, steps: int, *, applications: int = 1) -> None:
        """Runs this number of steps, fewer if all requests end; each request leaves after its last token."""
        for _ in range(steps):
            here = {self.harness.requests[slot].request_id: slot for slot in self.harness.active}
            counts = {name: len(self.harness.requests[slot].output) for name, slot in here.items()}
            tokens = {name: self._scripts[name].tokens[count] for name, count in counts.items()}
            rows = self.harness.step(tokens=tokens, applications=applications)
            self.rows |= {(name, counts[name]): row for name, row in rows.items()}
            self.acts |= {(name, counts[name]): actions for name, actions in self.harness.actions.items()}
            for name, count in counts.items():
                if count + 1 == len(self._scripts[name].tokens):
                    self.leave(here[name])


class Subject:
    """A processor, with requests for every set of arguments and others that do not use it."""

    def __init__(
        self, declared: DeclaredProcessor, fd_config: FDConfig, arguments: Sequence[Mapping[str, Any]], seed: int
    ) -> None:
        self.declared = declared
        self.fd_config = resized(fd_config, max_num_seqs=SLOTS, max_model_len=MAX_MODEL_LEN)
        self.arguments = [dict(args) for args in arguments]
        self.seed = seed
        self.times: list[StepTime] = []
        self.count = StepCount()

    @property
    def vocab_size(self) -> int:
        """Number of tokens in the vocabulary."""
        return self.fd_config.model_config.vocab_size

    def stage(self, *, rests: bool = True) -> Stage:
        """Returns a stage with a new instance of the processor and empty slots; see `harness`."""
        return Stage(self.harness(rests=rests))

    def harness(self, *, rests: bool = True, **size: int) -> ProcessorHarness:
        """Returns a new harness without scripts.

        rests: leave out updates as a chain does. `size` holds arguments for `resized`.
        """
        config = resized(self.fd_config, **{"max_num_seqs": SLOTS, **size})
        harness = ProcessorHarness(self.declared, fd_config=config, seed=self.seed, rests=rests)
        harness.count = self.count
        return harness

    @cached_property
    def scripts(self) -> list[Script]:
        """A request for every set of arguments, and some without arguments."""
        every = [*self.arguments, *[None] * PLAIN][:SLOTS]
        return [self.script(f"request-{index}", args) for index, args in enumerate(every)]

    @cached_property
    def using(self) -> list[Script]:
        """Requests that use the processor, or all if none does."""
        return [script for script in self.scripts if script.args is not None] or self.scripts

    @cached_property
    def plain(self) -> Script:
        """A request that does not use the processor, for steps about others."""
        return self.script("bystander", None, length=200)

    def script(self, request_id: str, args: dict[str, Any] | None, length: int = LENGTH) -> Script:
        """Returns a request; its tokens often occur in its arguments, so that conditions on tokens are met."""
        source = random.Random(f"{self.seed} {request_id}")
        named = [each for each in integers_in(args or {}) if 0 <= each < self.vocab_size]
        pool = [*named, *(source.randrange(self.vocab_size) for _ in range(3))]
        drawn = [source.choice(pool) for _ in range(length + 8)]
        # Processors after the filters see no request that takes the most likely token.
        sampled = source.random() < 0.5 or self.declared.stage != LOGITS
        params = SamplingParams(temperature=0.8 if sampled else 0.0, seed=source.randrange(2**32))
        return Script(request_id, args, tuple(drawn[: source.randint(1, 8)]), tuple(drawn[8:]), params)

    @cached_property
    def crowd(self) -> list[Script]:
        """Requests with random arguments and lengths, for checks in which requests come and go."""
        source = random.Random(self.seed)
        return [
            self.script(f"churn-{index}", source.choice(self.scripts).args, length=source.randint(1, LENGTH))
            for index in range(CROWD)
        ]

    @cached_property
    def alone(self) -> Rows:
        """Expected rows of `scripts`: each request alone with a new instance, in slot 0."""
        return self._alone[0]

    @cached_property
    def acts_alone(self) -> Acts:
        """Expected actions on `scripts`: each request alone with a new instance, in slot 0."""
        return self._alone[1]

    @cached_property
    def crowd_alone(self) -> Rows:
        """Expected rows of `crowd`: each request alone with a new instance, in slot 0."""
        return self.rows_alone(self.crowd)

    def rows_alone(
        self, scripts: Sequence[Script], *, slot: int = 0, applications: int = 1, rests: bool = True
    ) -> Rows:
        """Returns the rows of requests that each run alone with a new instance and empty slots."""
        return self._run_alone(scripts, slot, applications, rests=rests)[0]

    @cached_property
    def _alone(self) -> tuple[Rows, Acts]:
        return self._run_alone(self.scripts)

    def _run_alone(
        self, scripts: Sequence[Script], slot: int = 0, applications: int = 1, *, rests: bool = True
    ) -> tuple[Rows, Acts]:
        rows: Rows = {}
        acts: Acts = {}
        for script in scripts:
            stage = self.stage(rests=rests)
            stage.enter(script, slot)
            stage.run(LENGTH, applications=applications)
            rows |= stage.rows
            acts |= stage.acts
        return rows, acts

    def untouched(self, request_id: str, position: int) -> Row:
        """Returns the row before the processor."""
        return self._spare.random_row(request_id, position)

    @cached_property
    def _spare(self) -> ProcessorHarness:
        return self.harness()


def differs(expected: Row, actual: Row) -> int | None:
    """Returns a token whose logits differ, None if there is none."""
    # Comparing with a tolerance takes ten times as long, and nearly all rows are equal.
    if np.array_equal(actual, expected):
        return None
    close = np.isclose(actual, expected, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
    return None if close.all() else int(np.flatnonzero(~close)[0])


def differences(expected: Rows, actual: Rows) -> Iterator[str]:
    """Yields a description of every row that differs from the expected one, with the first token that differs."""
    for (name, position), row in actual.items():
        token = differs(expected[name, position], row)
        if token is not None:
            values = f"{row[token]:.6g} in place of {expected[name, position][token]:.6g}"
            yield f"{name}, step {position + 1}: the logit of token {token} is {values}"


def require_same(expected: Rows, actual: Rows, problem: str) -> None:
    """Raises Fault with `problem` and the first difference."""
    found = next(differences(expected, actual), None)
    if found is not None:
        raise Fault(f"{problem} ({found})")
