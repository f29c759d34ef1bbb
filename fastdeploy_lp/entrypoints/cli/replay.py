"""`fastdeploy-lp replay`: runs the requests of a request log again and reports differences."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastdeploy_lp.config import API_KEY_VARIABLE
from fastdeploy_lp.engine.client.data_parallel import make_engine
from fastdeploy_lp.engine.client.logged_request import LoggedEngine
from fastdeploy_lp.engine.errors import EngineDeadError, EngineStartError
from fastdeploy_lp.entrypoints.api_keys import key_of_environment
from fastdeploy_lp.entrypoints.declare import DeclaredEngine, declare_engine
from fastdeploy_lp.entrypoints.options import OptionsParser
from fastdeploy_lp.entrypoints.replay.backends import EngineBackend, ServerReplay
from fastdeploy_lp.entrypoints.replay.runner import ReplayRunner, ReplayTally
from fastdeploy_lp.entrypoints.server_address import ServerAddress
from fastdeploy_lp.startup.engine_args import EngineArgs

DESCRIPTION = """Run the requests of a file that a server wrote with --request-log again, with an engine of its own
(--model and its options) or on a running server (--url), and report every output that is not as it was."""
SERVER_CONCURRENCY = 8


@dataclass
class ReplayArgs:
    """Replay."""

    log: str = field(metadata={"positional": True, "help": "file that a server wrote with --request-log"})
    url: str | None = field(default=None, metadata={"help": "API of a running server; engine options do not apply"})
    api_key: str | None = field(
        default=None, metadata={"help": f"the server's key (default: the first of {API_KEY_VARIABLE})", "secret": True}
    )
    max_concurrency: int | None = field(
        default=None, metadata={"help": "requests in flight at a time (default: --max-num-seqs, or 8 on a server)"}
    )

    def __post_init__(self) -> None:
        if self.max_concurrency is not None and self.max_concurrency < 1:
            raise ValueError(f"max_concurrency: must be at least 1, not {self.max_concurrency}")
        if not Path(self.log).is_file():
            raise ValueError(f"log: {self.log}: no such file")


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> int:
    """Returns status 0 if all outputs are unchanged, 1 for a changed output or damaged line, 2 for invalid input."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    remote = any(word == "--url" or word.startswith("--url=") for word in arguments)
    kinds: list[type[Any]] = [ReplayArgs] if remote else [ReplayArgs, EngineArgs]
    args, *engine_args = OptionsParser(*kinds, prog=prog, description=DESCRIPTION).parse_options(arguments)
    try:
        if remote:
            tally = asyncio.run(_on_server(args))
        else:
            tally = asyncio.run(_on_engine(args, declare_engine(engine_args[0], progress=sys.stderr.isatty())))
    except (ValueError, OSError, EngineStartError, EngineDeadError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    print(f"{tally.same} the same, {tally.different} different, {tally.skipped} skipped, {tally.damaged} damaged lines")
    if not tally.same and not tally.different:
        print("error: the file holds no request that could be compared", file=sys.stderr)
        return 2
    return 1 if tally.different or tally.damaged else 0


async def _on_server(args: ReplayArgs) -> ReplayTally:
    concurrency = args.max_concurrency or SERVER_CONCURRENCY
    backend = ServerReplay(ServerAddress(args.url or ""), args.api_key or key_of_environment(), concurrency)
    runner = ReplayRunner(backend, print)
    await runner.run(_lines(args.log), concurrency)
    return runner.tally


async def _on_engine(args: ReplayArgs, setup: DeclaredEngine) -> ReplayTally:
    engine = make_engine(setup.fd_config, setup.declared)
    try:
        await engine.start()
        runner = ReplayRunner(EngineBackend(engine), print)
        concurrency = args.max_concurrency or setup.fd_config.scheduler_config.max_num_seqs
        await runner.run(_lines(args.log), concurrency)
    finally:
        await engine.shutdown()
    _tell_of_other_engines(runner.tally, LoggedEngine.of(setup.fd_config))
    return runner.tally


def _lines(log: str) -> Iterator[bytes]:
    """Yields the lines that the file has now: a server that is asked again appends to its own log."""
    left = Path(log).stat().st_size
    with Path(log).open("rb") as lines:
        while left > 0 and (line := lines.readline()):
            left -= len(line)
            yield line


def _tell_of_other_engines(tally: ReplayTally, own: LoggedEngine) -> None:
    for recorded in tally.engines.values():
        for difference in recorded.differences(own):
            print(f"recorded by another engine: {difference}", file=sys.stderr)
