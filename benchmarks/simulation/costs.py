"""Time of a step as a function of its work, and the time that the API process adds."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from fastdeploy_lp.worker.scheduled import ScheduledChunk

KNOTS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
# Stalls that no step makes itself; what they cost on average is the machine's business and not the model's.
OUTLIERS = 0.01


@dataclass(frozen=True)
class StepShape:
    """Work of a step.

    tokens: of all chunks. samples: chunks that end in a new token. pairs: query and key pairs, over all tokens.
    """

    tokens: int
    samples: int
    pairs: int

    @classmethod
    def of(cls, chunks: Sequence[ScheduledChunk]) -> StepShape:
        """The shape of a scheduled step."""
        tokens = samples = pairs = 0
        for chunk in chunks:
            count = chunk.num_tokens
            tokens += count
            samples += chunk.samples
            pairs += count * chunk.start + count * (count + 1) // 2
        return cls(tokens, samples, pairs)


@dataclass(frozen=True)
class StepCosts:
    """Seconds of a step: a piecewise-linear function of its tokens, and two unit costs.

    at_knots: seconds at each of `knots`, beyond which the last slope continues. per_sample: of a row of logits and its
    token. per_pair: of attention between a token and one that it sees.
    """

    knots: tuple[float, ...]
    at_knots: tuple[float, ...]
    per_sample: float
    per_pair: float

    def __post_init__(self) -> None:
        if len(self.knots) != len(self.at_knots) or len(self.knots) < 2:
            raise ValueError("at_knots: must be one for each of two or more knots")

    def seconds(self, shape: StepShape) -> float:
        """Seconds of a step of this shape."""
        knots, values = self.knots, self.at_knots
        right = min(max(bisect_right(knots, shape.tokens), 1), len(knots) - 1)
        left = right - 1
        slope = (values[right] - values[left]) / (knots[right] - knots[left])
        curve = values[left] + slope * (shape.tokens - knots[left])
        return curve + self.per_sample * shape.samples + self.per_pair * shape.pairs


@dataclass(frozen=True)
class ServerCosts:
    """Seconds that serving adds to a step computed alone; client and API process share the worker's cores.

    per_request: from a request's arrival until the worker has it, and back to the client. per_request_busy: the same
    while the worker computes, when busy processes wait for a core. per_step, per_token: added length of a step.
    """

    per_request: float = 0.0
    per_request_busy: float = 0.0
    per_step: float = 0.0
    per_token: float = 0.0


@dataclass(frozen=True)
class Costs:
    """Everything that takes time, and where and when it was measured.

    steps: how many were measured. fit_error: the median relative error of one; total_error: of all of them together,
    before all prices were scaled to make it 0.
    """

    step: StepCosts
    server: ServerCosts
    model: str = ""
    quantization: str | None = None
    machine: str = ""
    timestamp: str = ""
    steps: int = 0
    fit_error: float = 0.0
    total_error: float = 0.0

    @classmethod
    def of_steps(cls, step: StepCosts) -> Costs:
        """Without a server."""
        return cls(step, ServerCosts())

    @classmethod
    def read(cls, path: Path) -> Costs:
        """From a file; raises ValueError for one that holds something else."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except msgspec.MsgspecError as error:
            raise ValueError(f"{path.name}: {error}") from error

    def write(self, path: Path) -> None:
        """Into a file."""
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self)) + b"\n")


@dataclass(frozen=True)
class Fitted:
    """Costs of steps and their accuracy on the measured ones; see `Costs`."""

    costs: StepCosts
    fit_error: float
    total_error: float


def fit(shapes: Sequence[StepShape], seconds: Sequence[float]) -> Fitted:
    """The costs with the least relative square error; no price is negative and the curve never falls.

    Raises ValueError without measured steps.
    """
    if not shapes or len(shapes) != len(seconds):
        raise ValueError("seconds: must be one for each of at least one shape")
    taken = np.asarray(seconds)
    features = np.array([_features(shape) for shape in shapes])
    scale = features.max(axis=0)
    scale[scale == 0] = 1.0
    prices = _non_negative(features / scale / taken[:, None]) / scale
    error = np.abs(features @ prices / taken - 1)
    usual = error <= np.quantile(error, 1 - OUTLIERS)
    prices = _non_negative((features / scale / taken[:, None])[usual]) / scale
    # Relative errors weigh short steps most; a queue feels the sum.
    total = float((features @ prices).sum() / taken.sum())
    prices /= total
    predicted = features @ prices
    costs = StepCosts(KNOTS, tuple(np.cumsum(prices[:-2]).tolist()), float(prices[-2]), float(prices[-1]))
    relative = float(np.median(np.abs(predicted / taken - 1)))
    return Fitted(costs, relative, total - 1)


def _features(shape: StepShape) -> list[float]:
    """The share of each rise between knots that lies below the step's tokens, then samples and pairs."""
    rises = [1.0]
    for left, right in itertools.pairwise(KNOTS):
        rises.append(min(max((shape.tokens - left) / (right - left), 0.0), 1.0))
    return [*rises, float(shape.samples), float(shape.pairs)]


def _non_negative(features: NDArray[np.float64]) -> NDArray[np.float64]:
    """The prices that come nearest to 1 for every row; the most negative one becomes 0 until none is left."""
    kept = list(range(features.shape[1]))
    prices = np.zeros(features.shape[1])
    while kept:
        found = np.linalg.lstsq(features[:, kept], np.ones(len(features)), rcond=None)[0]
        if found.min() >= 0:
            prices[kept] = found
            break
        del kept[int(found.argmin())]
    return prices
