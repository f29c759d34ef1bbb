"""`fastdeploy-lp run-batch`: answers a file of requests with its own engine."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.engine.client.data_parallel import make_engine
from fastdeploy_lp.engine.errors import EngineDeadError, EngineStartError
from fastdeploy_lp.entrypoints.batch.files import OutputFile
from fastdeploy_lp.entrypoints.batch.runner import BatchRunner, Tally, numbered
from fastdeploy_lp.entrypoints.declare import DeclaredEngine, declare_engine
from fastdeploy_lp.entrypoints.openai.app import build_app
from fastdeploy_lp.entrypoints.openai.server_args import ServerArgs
from fastdeploy_lp.entrypoints.options import OptionsParser
from fastdeploy_lp.startup.engine_args import EngineArgs

# Effectively no limit on waiting requests: this process is the engine's only client and bounds the concurrency.
ANY_NUMBER = 2**31


@dataclass
class BatchArgs:
    """Batch."""

    input_file: str = field(metadata={"short": ["-i"], "help": "JSON lines with custom_id, method, url and body"})
    output_file: str = field(
        metadata={
            "short": ["-o"],
            "help": "where answers go, one line each; what an earlier run wrote there is not answered again",
        }
    )
    max_concurrency: int | None = field(
        default=None, metadata={"help": "requests in flight at a time (default: the value of --max-num-seqs)"}
    )

    def __post_init__(self) -> None:
        if self.max_concurrency is not None and self.max_concurrency < 1:
            raise ValueError(f"max_concurrency: must be at least 1, not {self.max_concurrency}")
        source, target = Path(self.input_file), Path(self.output_file)
        if not source.is_file():
            raise ValueError(f"input_file: {source}: no such file")
        if target.exists() and target.samefile(source):
            raise ValueError(f"output_file: {target} is the input file; give another one")


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> int:
    """Returns status 0 if every line has its answer, 1 if the run was interrupted, 2 for invalid options."""
    parser = OptionsParser(
        BatchArgs,
        EngineArgs,
        prog=prog,
        description="Answer a file of requests in the format of OpenAI's batches. Run it again to go on after a break.",
    )
    args, engine_args = parser.parse_options(argv)
    try:
        with OutputFile(Path(args.output_file)) as output:
            setup = declare_engine(
                dataclasses.replace(engine_args, max_waiting_requests=ANY_NUMBER), progress=sys.stderr.isatty()
            )
            tally = asyncio.run(_run(setup, args, output))
    except (ValueError, EngineStartError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except (EngineDeadError, OSError) as error:
        print(f"error: {error}; run the same command again to go on", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    print(f"{tally.completed} completed, {tally.failed} failed, {tally.skipped} answered before", file=sys.stderr)
    return 0


async def _run(setup: DeclaredEngine, args: BatchArgs, output: OutputFile) -> Tally:
    engine = make_engine(setup.fd_config, setup.declared, setup.stat_loggers)
    try:
        await engine.start()
        with Path(args.input_file).open("rb") as lines, tqdm(total=_count(args), unit="req", disable=None) as progress:
            app = build_app(engine, ServerArgs(api_key=[], admin_api_key=[]), setup.io_processor)
            runner = BatchRunner(app, output, progress)
            await runner.run(lines, args.max_concurrency or _all_slots(setup.fd_config))
        return runner.tally
    finally:
        await engine.shutdown()


def _all_slots(fd_config: FDConfig) -> int:
    return fd_config.scheduler_config.max_num_seqs * fd_config.parallel_config.data_parallel_size


def _count(args: BatchArgs) -> int:
    with Path(args.input_file).open("rb") as lines:
        return sum(1 for _ in numbered(lines))
