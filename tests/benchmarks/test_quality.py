from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.server import REPOSITORY, server_environment

from fastdeploy_lp.engine.tokenizer import Tokenizer

PROGRAM = REPOSITORY / "benchmarks" / "quality.py"


def load_program() -> Any:
    """Import the program by its path: `benchmarks` is a folder of programs, not a package."""
    spec = importlib.util.spec_from_file_location("benchmarks_quality", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


quality = load_program()


def ran(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), *options]
    return subprocess.run(command, capture_output=True, text=True, env=server_environment())


def score_of(reference: np.ndarray, own: np.ndarray, following: np.ndarray) -> Any:
    score = quality.Score()
    score.take(quality.log_softmax(reference), own, following)
    return quality.Quality.of("w8a8", "text", score)


@pytest.fixture
def logits() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((40, 7), np.float32)


def test_a_model_against_itself_agrees_with_no_divergence(logits: np.ndarray) -> None:
    found = score_of(logits, logits, np.zeros(40, np.int64))
    assert (found.agreement, found.perplexity_ratio, found.mean_kl) == (100.0, 1.0, 0.0)
    assert found.tokens == 40


def test_the_numbers_are_those_of_their_definitions(logits: np.ndarray) -> None:
    random = np.random.default_rng(1)
    own = logits + random.standard_normal((40, 7), np.float32)
    following = random.integers(0, 7, 40)
    p, q = (np.exp(x.astype(np.float64)) / np.exp(x.astype(np.float64)).sum(1, keepdims=True) for x in (logits, own))
    found = score_of(logits, own, following)
    assert found.agreement == pytest.approx(100 * (p.argmax(1) == q.argmax(1)).mean())
    assert found.perplexity == pytest.approx(np.exp(-np.log(q[np.arange(40), following]).mean()), rel=1e-5)
    assert found.mean_kl == pytest.approx((p * np.log(p / q)).sum(1).mean(), rel=1e-4)
    ratio = np.exp(np.log(p[np.arange(40), following]).mean() - np.log(q[np.arange(40), following]).mean())
    assert found.perplexity_ratio == pytest.approx(ratio, rel=1e-5)


@pytest.mark.parametrize(
    ("precision", "agreement", "ratio", "holds"),
    [
        ("w8a8", 95.0, 1.0, True),
        ("w8a8", 94.9, 1.0, False),
        ("w8a8/float32", 96.0, 1.021, False),
        ("w8a8", 96.0, 0.979, False),
        ("bfloat16", 98.0, 1.0, True),
        ("bfloat16", 97.9, 1.0, False),
        ("w8a16", 97.9, 1.0, False),
        ("w8a16", 98.0, 1.009, True),
        ("float32/float16", 0.0, 9.0, True),
    ],
)
def test_the_musts_judge_agreement_and_perplexity(precision: str, agreement: float, ratio: float, holds: bool) -> None:
    assert quality.Quality(precision, "all", 1, agreement, 1.0, ratio, 0.0).holds == holds


def test_a_folder_without_texts_is_refused(tmp_path: Path) -> None:
    done = ran("--texts", str(tmp_path))
    assert done.returncode == 2
    assert f"--texts: {tmp_path} holds no .txt file" in done.stderr


@pytest.mark.long
def test_the_default_model_keeps_its_quality_on_prose(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    shutil.copy(quality.TEXTS / "prose.txt", texts)
    done = ran("--precisions", "w8a8", "w8a16", "--texts", str(texts), "--json", str(tmp_path / "found.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "found.json").read_text())["missed"] == []


@pytest.mark.long
def test_the_default_model_keeps_its_quality_on_the_held_text(tmp_path: Path) -> None:
    done = ran("--precisions", "w8a8", "w8a16", "bfloat16", "--json", str(tmp_path / "found.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["missed"] == []
    overall = {row["precision"]: row for row in found["qualities"] if row["text"] == "all"}
    for precision, must in quality.MUSTS.items():
        row = overall[precision]
        assert row["tokens"] >= 5000
        assert row["agreement"] >= must.agreement
        assert abs(row["perplexity_ratio"] - 1) <= must.perplexity / 100
        assert f"{row['agreement']:.2f}" in done.stdout


@pytest.mark.slow
def test_the_held_text_is_read_whole_and_never_beyond_the_context() -> None:
    reader = quality.Reader("w8a8")
    texts = quality.held_text(quality.TEXTS, Tokenizer(reader.directory))
    assert set(texts) == {"code", "languages", "prose"}
    for windows in texts.values():
        assert all(len(window) == quality.CONTEXT for window in windows[:-1])
        assert 0 < len(windows[-1]) <= quality.CONTEXT
