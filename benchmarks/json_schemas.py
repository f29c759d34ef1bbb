"""JSON that ends: how many of 200 JSON Schemas the default model completes validly within a number of tokens.

``data/json_schemas.jsonl`` has the schemas, each with its keyword and what to ask for. Every schema is one chat with
guided decoding in each mode of whitespace. ``benchmarks/README.md`` explains the numbers.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from fastdeploy_lp import LLM, GuidedDecodingParams, SamplingParams
from fastdeploy_lp.request.guided_decoding import WHITESPACE

MODEL = "smollm2-135m"
DATA = Path(__file__).parent / "data" / "json_schemas.jsonl"
SMOKE_SCHEMAS = 8
MUST = 95.0
"""Percent of the schemas that must be complete and valid in the default mode."""


@dataclass(frozen=True)
class Task:
    """A schema; `keyword` is the one that it is about, `ask` what to ask for."""

    keyword: str
    ask: str
    schema: dict[str, Any]

    def conversation(self, *, with_schema: bool) -> list[dict[str, str]]:
        """Returns the chat that asks for it."""
        text = f"Give me {self.ask}. Be brief."
        text = f"{json.dumps(self.schema)}\n{text}" if with_schema else text.replace(". Be", ", as JSON. Be")
        return [{"role": "user", "content": text}]


@dataclass(frozen=True)
class Result:
    """An output; `reason` is why it does not count, empty if it is complete and valid."""

    keyword: str
    ask: str
    whitespace: str
    tokens: int
    reason: str
    text: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 if the default mode was measured with all schemas and too few were complete and valid."""
    args = parse_arguments(arguments)
    tasks = read_tasks(args.data)[: args.schemas]
    results: list[Result] = []
    with LLM(args.model, max_num_seqs=args.max_num_seqs, quantization=args.quantization) as llm:
        for whitespace in args.whitespace:
            results += ask_all(llm, tasks, whitespace, args)
    print(report(results, args.whitespace, show=args.show))
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(each) for each in results], indent=1, ensure_ascii=False) + "\n")
    measured = args.schemas is None and args.model == MODEL and WHITESPACE[0] in args.whitespace
    return 1 if measured and share(results, WHITESPACE[0]) < MUST else 0


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Returns the options; --smoke changes defaults only."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=MODEL, help=f"model of `LLM` (default: {MODEL})")
    parser.add_argument("--quantization", default=None, help="of the model, as of the server (default: none)")
    parser.add_argument("--whitespace", nargs="+", choices=WHITESPACE, default=list(WHITESPACE), help="modes (all)")
    parser.add_argument("--max-tokens", type=int, default=256, help="of each output (default: 256)")
    parser.add_argument("--temperature", type=float, default=0.2, help="of each output (default: 0.2)")
    parser.add_argument("--frequency-penalty", type=float, default=0.5, help="of each output (default: 0.5)")
    parser.add_argument("--no-schema", action="store_false", dest="with_schema", help="leave it out of the chats")
    parser.add_argument("--seed", type=int, default=0, help="of each output (default: 0)")
    parser.add_argument("--max-num-seqs", type=int, default=32, help="outputs at a time (default: 32)")
    parser.add_argument("--schemas", type=int, default=None, help="first schemas of the file (default: all)")
    parser.add_argument("--data", type=Path, default=DATA, help="file of schemas")
    parser.add_argument("--show", action="store_true", help="print the outputs that do not count")
    parser.add_argument("--json", type=Path, help="write all outputs")
    parser.add_argument("--smoke", action="store_true", help=f"{SMOKE_SCHEMAS} schemas in the default mode")
    if parser.parse_known_args(arguments)[0].smoke:
        parser.set_defaults(schemas=SMOKE_SCHEMAS, whitespace=[WHITESPACE[0]])
    return parser.parse_args(arguments)


def read_tasks(path: Path) -> list[Task]:
    """Returns the schemas of a file with one JSON object on a line."""
    return [Task(**json.loads(line)) for line in path.read_text().splitlines()]


def ask_all(llm: LLM, tasks: Sequence[Task], whitespace: str, args: argparse.Namespace) -> list[Result]:
    """Returns the outputs of all schemas in one mode."""
    params = [
        SamplingParams(
            temperature=args.temperature,
            frequency_penalty=args.frequency_penalty,
            seed=args.seed,
            max_tokens=args.max_tokens,
            guided_decoding=GuidedDecodingParams(json=task.schema, whitespace=whitespace),
        )
        for task in tasks
    ]
    outputs = llm.chat([task.conversation(with_schema=args.with_schema) for task in tasks], params)
    results = []
    for task, output in zip(tasks, outputs, strict=True):
        answer = output.outputs
        reason = reason_against(task.schema, answer.text, answer.finish_reason)
        results.append(Result(task.keyword, task.ask, whitespace, len(answer.token_ids), reason, answer.text))
    return results


def reason_against(schema: dict[str, Any], text: str, finish_reason: str | None) -> str:
    """Returns why an output is not complete and valid; empty if it is."""
    if finish_reason != "stop":
        return f"not complete ({finish_reason})"
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"no JSON: {error}"
    validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    return next((f"not valid: {error.message}" for error in validator.iter_errors(value)), "")


def share(results: Sequence[Result], whitespace: str) -> float:
    """Returns the percentage of a mode's outputs that are complete and valid."""
    reasons = [each.reason for each in results if each.whitespace == whitespace]
    return 100 * sum(not reason for reason in reasons) / max(len(reasons), 1)


def report(results: Sequence[Result], modes: Sequence[str], *, show: bool = False) -> str:
    """Returns the table, and with `show` the outputs that do not count."""
    lines = [f"{'whitespace':<12}{'schemas':>8}{'good':>6}{'share':>9}{'tokens':>8}"]
    for mode in modes:
        own = [each for each in results if each.whitespace == mode]
        tokens = sum(each.tokens for each in own) / max(len(own), 1)
        good = sum(not each.reason for each in own)
        lines.append(f"{mode:<12}{len(own):>8}{good:>6}{share(results, mode):>7.1f} %{tokens:>8.1f}")
    bad = [each for each in results if each.reason] if show else []
    lines += [f"\n{each.whitespace}: {each.keyword}: {each.ask}: {each.reason}\n  {each.text!r}" for each in bad]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
