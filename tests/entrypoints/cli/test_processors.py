"""What `fastdeploy-lp processors` shows of processors written for vLLM."""

from __future__ import annotations

import pytest
from support.stand_ins import vllm_stand_ins

from fastdeploy_lp.entrypoints.cli.processors import main

SPEC = "support.documents_torch:DummyLogitsProcessor"


def test_processors_for_vllm_are_shown_with_the_option_that_a_refusal_advises(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([SPEC]) == 2
    assert "add --vllm-compat" in capsys.readouterr().err
    with vllm_stand_ins():
        assert main(["--vllm-compat", SPEC]) == 0
    assert f"DummyLogitsProcessor  torch {SPEC}  " in capsys.readouterr().out
