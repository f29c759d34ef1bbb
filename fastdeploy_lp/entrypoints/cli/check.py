"""`fastdeploy-lp check`: verifies a logits processor against the contract, without a model or a server."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fastdeploy_lp.entrypoints.usage import CommandParser
from fastdeploy_lp.logits_processor import fastdeploy_compat, vllm_compat
from fastdeploy_lp.platforms import current_platform
from fastdeploy_lp.startup.engine_args import EngineArgs

if TYPE_CHECKING:
    from fastdeploy_lp.config import FDConfig
    from fastdeploy_lp.logits_processor.testing import CheckReport


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> int:
    """Returns status 0 if every check passes, 1 if one fails (with --strict: or has advice), 2 for invalid options."""
    parser = _parser(prog)
    args = parser.parse_args(argv)
    # Paddle reads these variables on import; with them, measured times equal a worker's.
    os.environ.update(current_platform().worker_environment())
    from fastdeploy_lp.logits_processor.testing import Outcome, check_processor

    if args.vllm_compat:
        vllm_compat.install()
    if args.fastdeploy_compat:
        fastdeploy_compat.install()
    params = None if args.params is None else [each for given in args.params for each in given]
    try:
        report = check_processor(
            args.spec, params, fd_config=_fd_config(args.model), seed=args.seed, skip=args.skip or ()
        )
    except ValueError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    print(_as_json(report) if args.json else report)
    return 0 if report.passed and not (args.strict and report.of(Outcome.ADVICE)) else 1


def _parser(prog: str | None) -> CommandParser:
    parser = CommandParser(
        prog=prog,
        description="Check a logits processor without a server: what it returns, whose rows it changes, and so on.",
    )
    parser.add_argument("spec", metavar="SPEC", help="as behind --logits-processors")
    taken: dict[str, Any] = {"dest": "params", "type": _params, "action": "append", "metavar": "JSON"}
    text = "arguments of a request, or a list of several; repeatable (default: drawn from Params)"
    parser.add_argument("--logits-processors-args", **taken, help=text)
    # The former name.
    parser.add_argument("--params", **taken, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--strict", action="store_true", help="advice, too, gives status 1")
    parser.add_argument("--skip", action="append", metavar="CHECK", help="leave a check out; may stand several times")
    parser.add_argument("--model", help="give it the configuration and the tokenizer of this model (default: of none)")
    parser.add_argument("--seed", type=int, default=0, help="what random logits depend on (default: 0)")
    parser.add_argument("--vllm-compat", action="store_true", help="let it import vllm's modules without vLLM")
    parser.add_argument("--fastdeploy-compat", action="store_true", help="the same for fastdeploy's modules")
    return parser


def _params(text: str) -> list[dict[str, Any]]:
    try:
        given = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text} is no JSON: {error}") from None
    several = given if isinstance(given, list) else [given]
    if not all(isinstance(each, dict) for each in several):
        raise argparse.ArgumentTypeError(f"{text} must be a JSON object of arguments, or a list of objects")
    return several


def _fd_config(model: str | None) -> FDConfig | None:
    return None if model is None else EngineArgs(model=model).create_fd_config(show_progress=False)


def _as_json(report: CheckReport) -> str:
    return json.dumps(report.as_dict(), indent=2)
