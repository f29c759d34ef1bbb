"""Thirty single-line faults that a person could make, to compare how many of them two states of the tests catch.

`python tests/support/planted_faults.py list` shows them, `check` looks for their lines, and `run [NAME ...]` plants one
after another in a copy of this tree, runs tests there and reports the first one that fails. Without `--tests`, each
fault has the tests of its part. Faults are found by the text of their line, wherever its file is.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PACKAGE = "fastdeploy_lp"
SECONDS = 900.0
CAUGHT, ESCAPED, HUNG = "caught", "escaped", "hung"
# A failure counts, whatever its smallest example is: shrinking takes minutes.
WITHOUT_SHRINKING = """

from hypothesis import Phase

settings.register_profile("planted", settings.get_profile("fixed"), phases=[Phase.explicit, Phase.generate])
settings.load_profile("planted")
"""
# Exit statuses of pytest: all passed, tests failed, collection failed.
PASSED, FAILED, INTERRUPTED = 0, 1, 2


@dataclass(frozen=True)
class Fault:
    """One line of the package and its replacement, both without indentation.

    behaviour: what breaks. tests: files that exercise the line, below `tests`.
    """

    name: str
    old: str
    new: str
    behaviour: str
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """Result of the tests with one fault. by: the first test that failed."""

    fault: str
    result: str
    by: str = ""


FAULTS = (
    Fault(
        "stop-across-tokens",
        "hits = [(self._text.find(stop, max(before - len(stop) + 1, 0)), stop) for stop in self._stop_strings]",
        "hits = [(self._text.find(stop, before), stop) for stop in self._stop_strings]",
        "engine: a stop string that two tokens spell ends the output",
        ("engine/client/test_completion.py",),
    ),
    Fault(
        "values-per-sequence",
        "if sequences <= 1 or each * sequences <= MAX_CARRIED_VALUES:",
        "if sequences <= 1 or each <= MAX_CARRIED_VALUES:",
        "engine: values that all sequences of a request carry are bounded together",
        ("engine/test_sequence_values.py",),
    ),
    Fault(
        "credit-for-idling",
        "self._tokens[client] = max(self._tokens.get(client, 0), self._floor())",
        "self._tokens[client] = self._tokens.get(client, 0)",
        "engine: a client that comes back gets no credit for the time without requests",
        ("engine/test_waiting_queue.py",),
    ),
    Fault(
        "same-retry-for-all",
        "self._promised = min(max(self._promised, now) + places * per_place, now + LONGEST_SECONDS)",
        "self._promised = min(now + places * per_place, now + LONGEST_SECONDS)",
        "engine: refused clients get different times to retry",
        ("engine/test_retry_after.py",),
    ),
    Fault(
        "tool-call-index",
        "self._calls.append(ToolCallDelta(self._num_calls, body.name))",
        "self._calls.append(ToolCallDelta(0, body.name))",
        "parsers: calls of a message are numbered from 0",
        ("engine/tool_parsers/test_hermes.py",),
    ),
    Fault(
        "reasoning-length",
        "self.length = len(self._waiting) - len(seen) + len(BEGIN)",
        "self.length = len(self._waiting) - len(seen)",
        "parsers: the length of reasoning includes its begin marker",
        ("engine/reasoning_parsers/test_think.py", "engine/test_message_parser.py"),
    ),
    Fault(
        "marker-cut-short",
        "longest = min(len(text), len(marker) - 1)",
        "longest = min(len(text), len(marker) - 2)",
        "parsers: a text that ends with all but one character of a marker waits",
        ("engine/test_marker.py", "engine/reasoning_parsers/test_think.py"),
    ),
    Fault(
        "no-spare-blocks",
        "if not self._blocks.admit(sequence, prefix, spare=len(self._running)):",
        "if not self._blocks.admit(sequence, prefix):",
        "scheduler: admission leaves a block for each running sequence",
        ("worker/test_scheduler.py",),
    ),
    Fault(
        "budget-without-generating",
        "left = self._budget - num_generating",
        "left = self._budget",
        "scheduler: tokens of generating sequences count in the step's budget",
        ("worker/test_scheduler.py",),
    ),
    Fault(
        "whole-prompt-cached",
        "size, usable = self._block_size, sequence.num_tokens - 1",
        "size, usable = self._block_size, sequence.num_tokens",
        "prefix cache: the last token of a prompt is always computed",
        ("worker/test_block_manager.py", "worker/test_prefix_cache.py"),
    ),
    Fault(
        "youngest-block-reused",
        "block, _ = self._idle.popitem(last=False)",
        "block, _ = self._idle.popitem()",
        "prefix cache: the least recently released block is reused first",
        ("worker/test_block_manager.py", "worker/test_prefix_cache.py"),
    ),
    Fault(
        "number-of-the-slot",
        "return requests.draws_by(self._uniforms[num_tokens - self._first, np.arange(len(slots))])",
        "return requests.draws_by(requests.uniforms(slots))",
        "sampler: draws depend on the position, not on the slot",
        ("worker/sampler/test_sampler.py", "worker/test_engine_core.py", "worker/test_golden.py"),
    ),
    Fault(
        "one-token-too-many",
        "short = missing > 0",
        "short = missing >= 0",
        "sampler: stop tokens are allowed from min_tokens on",
        ("worker/sampler/test_chain_tail.py", "worker/sampler/test_sampler.py"),
    ),
    Fault(
        "frequency-without-count",
        "taken_off = frequency * penalties.counts",
        "taken_off = frequency * (penalties.counts > 0)",
        "operators: the frequency penalty grows with the count",
        ("model_executor/ops/test_row_ops.py", "worker/sampler/test_sampler.py"),
    ),
    Fault(
        "rank-from-zero",
        'ranks = (logits > own).astype("int64").sum(axis=-1) + 1',
        'ranks = (logits > own).astype("int64").sum(axis=-1)',
        "operators: the most likely token has rank 1",
        ("model_executor/ops/test_row_ops.py", "worker/sampler/test_logprobs.py"),
    ),
    Fault(
        "skipped-when-drawn",
        "skipped = self._without_effect(group) if all_greedy else ()",
        "skipped = self._without_effect(group)",
        "chain: processors that keep the most likely token run for drawn tokens",
        ("logits_processor/test_skipping.py",),
    ),
    Fault(
        "refusal-kept",
        "self._refused.pop(slot, None)",
        "self._refused.get(slot)",
        "chain: a request does not inherit the failure of the one before it in its slot",
        (
            "logits_processor/chain/test_chain.py",
            "logits_processor/test_order.py",
            "logits_processor/chain/test_faults.py",
        ),
    ),
    Fault(
        "one-fault-more",
        "if count.total >= self._policy.max_faults:",
        "if count.total > self._policy.max_faults:",
        "chain: the max_faults-th fault puts a processor into quarantine",
        ("logits_processor/chain/test_faults.py", "logits_processor/test_guard.py"),
    ),
    Fault(
        "ngram-one-longer",
        "if len(self._tail) < self._size - 1:",
        "if len(self._tail) < self._size:",
        "builtins: no_repeat_ngram_size bans a token that completes a run",
        ("logits_processor/builtin/test_repetitions.py",),
    ),
    Fault(
        "sentence-beyond-budget",
        "self._free = max(0, budget - len(self._sentence))",
        "self._free = max(0, budget)",
        "builtins: the stop sentence counts toward the thinking budget",
        ("logits_processor/builtin/test_forcing.py",),
    ),
    Fault(
        "move-backwards",
        "moves.append((last, hole, self._interface.one_way))",
        "moves.append((hole, last, self._interface.one_way))",
        "dialects: batch updates move the last row into a hole",
        ("logits_processor/dialects/test_batch_tracker.py",),
    ),
    Fault(
        "instance-called-twice",
        "if own.given is not None and own.made is not None and bool((own.given == part).all()):",
        "if own.given is None and own.made is not None and bool((own.given == part).all()):",
        "dialects: a stateful instance sees a token once, also if the chain runs again",
        ("logits_processor/dialects/test_stateful_instances.py", "logits_processor/dialects/test_callables.py"),
    ),
    Fault(
        "min-equals-max",
        "if self.max_tokens is not None and self.min_tokens > self.max_tokens:",
        "if self.max_tokens is not None and self.min_tokens >= self.max_tokens:",
        "protocol: min_tokens may equal max_tokens",
        ("request/test_sampling_params.py", "entrypoints/openai/test_sampling_fields.py"),
    ),
    Fault(
        "chat-with-special-tokens",
        "special = body.prompt is not None if body.add_special_tokens is None else body.add_special_tokens",
        "special = True if body.add_special_tokens is None else body.add_special_tokens",
        "routes: /tokenize adds no special tokens to a rendered chat",
        ("entrypoints/openai/routes/test_tokenization.py",),
    ),
    Fault(
        "abort-for-anyone",
        "reachable = (each for each in in_flight.running() if own.operator or each.client == own.client)",
        "reachable = in_flight.running()",
        "routes: a client aborts its own requests only",
        ("entrypoints/openai/test_operators.py", "entrypoints/openai/routes/test_abort.py"),
    ),
    Fault(
        "client-is-operator",
        "record.operator = place is not None and place >= self._num_client_keys",
        "record.operator = place is not None and place >= self._num_client_keys - 1",
        "routes: a client's key is no operator's key",
        ("entrypoints/openai/middleware/test_authentication.py", "entrypoints/openai/test_operators.py"),
    ),
    Fault(
        "head-size-of-hidden",
        'queries = config["num_attention_heads"] * config["head_dim"]',
        'queries = config["hidden_size"]',
        "checkpoint: heads of a GGUF model need not add up to its hidden size",
        ("checkpoint/test_gguf_weights.py", "checkpoint/test_gguf_architectures.py"),
    ),
    Fault(
        "trigger-written-twice",
        "rest = tag.begin[len(triggers[head]) :]",
        "rest = tag.begin",
        "grammar: a tag goes on after its trigger",
        ("guided_decoding/test_lark.py", "guided_decoding/test_grammar.py"),
    ),
    Fault(
        "no-null-block",
        "wanted = 1 + max_num_seqs * per_sequence",
        "wanted = max_num_seqs * per_sequence",
        "config: the null block comes on top of the blocks of all slots",
        ("startup/test_cache_size.py",),
    ),
    Fault(
        "page-as-a-file",
        "if name not in files or name in PAGES.values():",
        "if name not in files:",
        "playground: its pages have one address each",
        ("entrypoints/playground/test_static_file.py",),
    ),
)


def place_of(fault: Fault, root: Path) -> tuple[Path, int]:
    """Returns the file and the index of the fault's line; raises LookupError unless the package has it once."""
    places = [
        (path, number)
        for path in sorted((root / PACKAGE).rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines())
        if line.strip() == fault.old
    ]
    if len(places) != 1:
        raise LookupError(f"{fault.name}: {len(places)} lines read {fault.old!r}")
    return places[0]


class Copy:
    """A copy of this tree, tracked and new files alike, in which one fault at a time is planted."""

    def __init__(self, root: Path) -> None:
        self.root = root
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=True,
        )
        for name in filter(None, listed.stdout.split("\0")):
            source, target = REPOSITORY / name, root / name
            if source.exists() or source.is_symlink():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target, follow_symlinks=False)
        with (root / "tests" / "conftest.py").open("a", encoding="utf-8") as conftest:
            conftest.write(WITHOUT_SHRINKING)
        self._changes = 0

    def plant(self, fault: Fault) -> Path:
        """Replaces the fault's line and returns the file."""
        path, number = place_of(fault, self.root)
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        lines[number] = lines[number].replace(fault.old, fault.new)
        self._write(path, "".join(lines))
        return path

    def heal(self, path: Path) -> None:
        """Restores a file."""
        self._write(path, (REPOSITORY / path.relative_to(self.root)).read_text(encoding="utf-8"))

    def run(self, tests: Sequence[str], seconds: float) -> tuple[int, str]:
        """Runs tests until one fails; returns pytest's exit status and output.

        Raises TimeoutExpired after `seconds`, and ends the tests with all processes that they have started.
        """
        paths = [str(self.root / "tests" / each) for each in tests]
        pytest = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *paths],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": str(self.root)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = pytest.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(pytest.pid, signal.SIGKILL)
            pytest.communicate()
            raise
        return pytest.returncode, output

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text, encoding="utf-8")
        # Compiled files are valid for a size and a whole second.
        self._changes += 1
        moment = path.stat().st_mtime + 2 * self._changes
        os.utime(path, (moment, moment))


def outcome_of(fault: Fault, copy: Copy, tests: Sequence[str], seconds: float) -> Outcome:
    """Plants the fault, runs the tests and removes it; raises RuntimeError if pytest could not run."""
    path = copy.plant(fault)
    try:
        status, output = copy.run(tests, seconds)
    except subprocess.TimeoutExpired:
        return Outcome(fault.name, HUNG)
    finally:
        copy.heal(path)
    if status == PASSED:
        return Outcome(fault.name, ESCAPED)
    if status not in (FAILED, INTERRUPTED):
        raise RuntimeError(f"{fault.name}: pytest ended with status {status}:\n{output}")
    first = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    return Outcome(fault.name, CAUGHT, first[1] if first else "")


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 1 if a fault escapes or a line is not found, else 0."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="show the faults")
    commands.add_parser("check", help="look for the line of each fault")
    run = commands.add_parser("run", help="plant faults and run tests")
    run.add_argument("names", nargs="*", metavar="NAME", help="faults (default: all)")
    run.add_argument("--tests", nargs="+", metavar="PATH", help="below tests/ (default: those of each fault)")
    run.add_argument("--seconds", type=float, default=SECONDS, help=f"limit for each run (default: {SECONDS:g})")
    run.add_argument("--json", type=Path, help="write the outcomes to this file")
    args = parser.parse_args(argv)
    if args.command == "list":
        for fault in FAULTS:
            print(f"{fault.name}: {fault.behaviour}\n  - {fault.old}\n  + {fault.new}")
        return 0
    if args.command == "check":
        return _check()
    unknown = set(args.names) - {fault.name for fault in FAULTS}
    if unknown:
        parser.error(f"no faults: {', '.join(sorted(unknown))}")
    outcomes = _run([fault for fault in FAULTS if not args.names or fault.name in args.names], args.tests, args.seconds)
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(each) for each in outcomes], indent=1) + "\n")
    caught = sum(each.result == CAUGHT for each in outcomes)
    print(f"{caught} of {len(outcomes)} caught")
    return int(caught < len(outcomes))


def _check() -> int:
    missing = 0
    for fault in FAULTS:
        try:
            path, number = place_of(fault, REPOSITORY)
            print(f"{fault.name}: {path.relative_to(REPOSITORY)}:{number + 1}")
        except LookupError as error:
            missing += 1
            print(error)
    return int(missing > 0)


def _run(faults: Sequence[Fault], tests: Sequence[str] | None, seconds: float) -> list[Outcome]:
    outcomes = []
    with tempfile.TemporaryDirectory() as name:
        copy = Copy(Path(name))
        for fault in faults:
            outcomes.append(outcome_of(fault, copy, tests or fault.tests, seconds))
            print(f"{fault.name}: {outcomes[-1].result} {outcomes[-1].by}".rstrip(), flush=True)
    return outcomes


if __name__ == "__main__":
    sys.exit(main())
