"""`fastdeploy-lp explain`: explains how each token of an answer was chosen, stage by stage."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TextIO

from fastdeploy_lp.engine.errors import EngineStartError, RequestFailedError
from fastdeploy_lp.engine_args import EngineArgs
from fastdeploy_lp.entrypoints.chat.session import parse_assignments
from fastdeploy_lp.entrypoints.chat.settings import ARGS, Settings
from fastdeploy_lp.entrypoints.llm import LLM
from fastdeploy_lp.entrypoints.openai.protocol.trace import shadow_body, trace_body
from fastdeploy_lp.entrypoints.options import OptionsParser
from fastdeploy_lp.entrypoints.trace_table import TraceTable
from fastdeploy_lp.outputs import RequestOutput
from fastdeploy_lp.sampling_params import SamplingParams
from fastdeploy_lp.trace_params import TraceParams

DESCRIPTION = """Answer a prompt and show, for each token, what the model, each logits processor, penalties and the
sampler made of its probability: how much of it moved, the entropy, and the most likely tokens."""


@dataclass
class ExplainArgs:
    """Explain."""

    prompt: str = field(metadata={"help": "what the model is asked", "positional": True})
    args: str | None = field(default=None, metadata={"help": "JSON object of arguments for all logits processors"})
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
        if self.args is not None:
            settings.set(ARGS, self.args)
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
