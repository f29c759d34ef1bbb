from __future__ import annotations

from pathlib import Path

from support.tiny import write_tiny_checkpoint

from benchmarks.wasm_neighbours import FUZZED, PLAIN, START, STEP, arguments, measure


def test_every_kind_is_measured(tmp_path: Path) -> None:
    model = write_tiny_checkpoint(tmp_path, context=2048)
    # By default, a tiny model earns a turn of the processors in seconds.
    args = arguments(["--smoke", "--share", "1", "--model", str(model), "--quantization", "w8a8"])
    turns = measure(args)
    assert list(turns) == [PLAIN, STEP, START, FUZZED]
    assert all(turn.mean > 0 for (turn,) in turns.values())
    assert turns[PLAIN][0].share == 0
    assert turns[STEP][0].share > 0
