"""`fastdeploy-lp explain`: explains how each token of an answer was chosen, stage by stage."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TextIO

from fastdeploy_lp.engine.errors import EngineStartError, RequestFailedError
from fastdeploy_lp.entrypoints.chat.session import ARGS, Settings, parse_assignments
from fastdeploy_lp.entrypoints.llm import LLM
from fastdeploy_lp.entrypoints.openai.protocol.trace import shadow_body, trace_body
from fastdeploy_lp.entrypoints.options import OptionsParser
from fastdeploy_lp.request.outputs import RequestOutput
from fastdeploy_lp.request.sampling_params import SamplingParams
from fastdeploy_lp.request.trace import RAN, ShadowReport, TokenTrace, TracedToken, TraceParams, TraceStage
from fastdeploy_lp.startup.engine_args import EngineArgs

BOLD, DIM, RED, GREEN, YELLOW, CYAN = "1", "2", "31", "32", "33", "36"
# Shares of probability mass moved, from which a change counts as noticeable and as great.
NOTICEABLE, GREAT = 0.01, 0.3


@dataclass(frozen=True)
class TraceTable:
    """Renders traces. color: use ANSI sequences. width: maximum characters per line, None for no limit."""

    color: bool = False
    width: int | None = None

    def of(self, trace: Sequence[TokenTrace]) -> str:
        """Returns one block of lines per token, one line per stage."""
        return "\n".join("\n".join(self._token(place, each)) for place, each in enumerate(trace, start=1))

    def shadows(self, reports: Mapping[str, ShadowReport]) -> str:
        """Returns one line per processor in shadow."""
        return "\n".join(self._report(name, report) for name, report in reports.items())

    def _token(self, place: int, trace: TokenTrace) -> Iterator[str]:
        names = [stage.name for stage in trace.stages]
        column = max(len(name) for name in [*names, "stage"])
        title = f"token {place}: {shown(trace.decoded_token)} ({trace.token_id})"
        yield self._painted(title, BOLD)
        yield self._painted(f"  {'stage':<{column}}   moved  entropy  sampled  rank  most likely", DIM)
        for stage in trace.stages:
            yield self._stage(trace.token_id, stage, column)
        for name, shadow in trace.shadows.items():
            if shadow.failed:
                yield self._painted(f"  {name} failed in shadow", RED)
            elif shadow.changed:
                other = "nothing" if shadow.decoded_token is None else shown(shadow.decoded_token)
                yield self._painted(f"  with {name}, in shadow, it would be {other}", YELLOW)

    def _stage(self, token_id: int, stage: TraceStage, column: int) -> str:
        name = f"{stage.name:<{column}}"
        if stage.taken_back:
            text = "".join(token.decoded_token for token in stage.taken_back)
            return f"  {self._painted(name, CYAN)}  took back {shown(text)}"
        if stage.status != RAN or stage.sampled is None:
            return f"  {self._painted(f'{name}  {stage.status}', DIM)}"
        moved = stage.mass_moved or 0.0
        loud = RED if moved >= GREAT else YELLOW if moved >= NOTICEABLE else DIM
        numbers = (
            f"{self._painted(f'{moved:6.1%}', loud)}  {stage.entropy or 0.0:7.3f}  "
            f"{stage.sampled.probability:7.2%}  {stage.sampled.rank:4}"
        )
        # Width without the color sequences.
        taken = 2 + column + 2 + 6 + 2 + 7 + 2 + 7 + 2 + 4 + 2
        flipped = f"{self._painted('flipped', RED)} " if stage.flipped else ""
        room = None if self.width is None else self.width - taken - (8 if stage.flipped else 0)
        return f"  {self._painted(name, CYAN)}  {numbers}  {flipped}{self._top(token_id, stage.top, room)}"

    def _top(self, token_id: int, top: Sequence[TracedToken], room: int | None) -> str:
        """Returns as many tokens as fit into `room` characters, but at least one."""
        parts: list[str] = []
        used = 0
        for token in top:
            text = f"{shown(token.decoded_token)} {token.probability:.1%}"
            used += len(text) + (2 if parts else 0)
            if parts and room is not None and used > room:
                break
            parts.append(self._painted(text, GREEN) if token.token_id == token_id else text)
        return "  ".join(parts)

    def _report(self, name: str, report: ShadowReport) -> str:
        failed = f", {report.faults} failed" if report.faults else ""
        line = f"{name} in shadow would have changed {report.changed} of {report.tokens} tokens{failed}"
        return self._painted(line, YELLOW if report.changed or report.faults else DIM)

    def _painted(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.color else text


def shown(text: str) -> str:
    """Returns a token in quotes, with control characters escaped for the terminal."""
    inner = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
    return f'"{inner}"'


DESCRIPTION = """Answer a prompt and show, for each token, what the model, each logits processor, penalties and the
sampler made of its probability: how much of it moved, the entropy, and the most likely tokens."""


@dataclass
class ExplainArgs:
    """Explain."""

    prompt: str = field(metadata={"help": "what the model is asked", "positional": True})
    logits_processors_args: str | None = field(
        default=None, metadata={"help": "JSON object of arguments for all logits processors", "former": ["args"]}
    )
    use: list[str] = field(
        default_factory=list,
        metadata={"help": "logits processors to select, with parameters as a JSON object", "metavar": "NAME[={JSON}]"},
    )
    top_k: int = field(default=5, metadata={"help": "most likely tokens to show, 1 to 20"})
    max_tokens: int = field(default=8, metadata={"help": "tokens to generate"})
    temperature: float = field(default=0.0, metadata={"help": "0 takes the most likely token"})
    seed: int = field(default=0, metadata={"help": "of the draw, with a temperature"})
    plain: bool = field(default=False, metadata={"help": "go on with the prompt itself, without the chat template"})
    json: bool = field(default=False, metadata={"help": "write JSON instead of a table"})

    def __post_init__(self) -> None:
        self.params()

    def params(self) -> SamplingParams:
        """Returns the sampling parameters; raises ValueError naming the option."""
        settings = Settings()
        parse_assignments(self.use, "use", settings.use)
        if self.logits_processors_args is not None:
            settings.set(ARGS, self.logits_processors_args)
        try:
            return SamplingParams(
                temperature=self.temperature,
                seed=self.seed,
                max_tokens=self.max_tokens,
                logits_processors_trace=TraceParams(top_k=self.top_k),
                **settings.fields,
            )
        except ValueError as error:
            raise ValueError(str(error).removeprefix("logits_processors_trace.")) from None


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> int:
    """Returns status 0, 1 if the request failed while running, or 2 for invalid options."""
    parser = OptionsParser(ExplainArgs, EngineArgs, prog=prog, description=DESCRIPTION)
    args, engine = parser.parse_options(argv)
    try:
        with LLM(**vars(engine)) as llm:
            output = _answer(llm, args)
    except (ValueError, EngineStartError, RequestFailedError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 1 if isinstance(error, RequestFailedError) else 2
    print(_as_json(output) if args.json else _as_table(output, sys.stdout))
    return 0


def _answer(llm: LLM, args: ExplainArgs) -> RequestOutput:
    if args.plain:
        return llm.generate(args.prompt, args.params(), use_tqdm=False)[0]
    return llm.chat([{"role": "user", "content": args.prompt}], args.params(), use_tqdm=False)[0]


def _as_table(output: RequestOutput, out: TextIO) -> str:
    watched = out.isatty()
    color = watched and not os.environ.get("NO_COLOR")
    table = TraceTable(color=color, width=shutil.get_terminal_size().columns if watched else None)
    found = output.outputs
    shadows = table.shadows(found.logits_processors_shadow or {})
    return "\n".join(part for part in (table.of(found.logits_processors_trace or []), shadows, found.text) if part)


def _as_json(output: RequestOutput) -> str:
    found = output.outputs
    trace, shadows = trace_body(found.logits_processors_trace), shadow_body(found.logits_processors_shadow)
    told = {
        "text": found.text,
        "finish_reason": found.finish_reason,
        "logits_processors_trace": [each.model_dump(mode="json") for each in trace or []],
        "logits_processors_shadow": {name: each.model_dump() for name, each in (shadows or {}).items()},
    }
    return json.dumps(told, ensure_ascii=False)
