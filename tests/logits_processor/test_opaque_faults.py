"""A fault of a processor without `Params` is no affair of requests whose arguments others claim."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import support.faulty as faulty
from support.faulty import Fault
from support.outcomes import engine_with, run
from support.sequences import request

from fastdeploy_lp.config.option_values import spec_of
from fastdeploy_lp.engine.client.processor_states import ProcessorStates
from fastdeploy_lp.engine.errors import ProcessorUnavailableError
from fastdeploy_lp.logits_processor import Selection, load_processors
from fastdeploy_lp.stats import QUARANTINED, ProcessorStats

BIASED, VICTIM = {"logit_bias": {7: 2.0}}, {"fail": True}


@pytest.fixture
def raising() -> Iterator[None]:
    Fault.mode = "raise"
    yield
    Fault.mode = ""


@pytest.mark.usefixtures("raising")
@pytest.mark.parametrize("cls", [faulty.Native, faulty.Vllm])
def test_it_ends_the_requests_that_use_the_processor_alone(cls: type) -> None:
    requests = [request(f"r{index}", [index + 1, 5], logits_processors_args=BIASED, max_tokens=4) for index in range(4)]
    requests.append(request("victim", [9, 5], logits_processors_args={**BIASED, **VICTIM}, max_tokens=4))
    outcome = run(engine_with(cls), *requests)
    assert set(outcome.errors) == {"victim"}
    assert all(len(outcome.tokens[f"r{index}"]) == 4 for index in range(4))


def test_its_quarantine_refuses_the_requests_that_use_it_alone() -> None:
    spec = spec_of(faulty.Native)
    states = ProcessorStates(load_processors(["LogitBiasLogitsProcessor", spec], {spec: faulty.Native}))
    states.update([ProcessorStats("Native", state=QUARANTINED, last_error="broken")])
    states.require_in_service(Selection(flat=BIASED))
    with pytest.raises(ProcessorUnavailableError, match="Native is in quarantine"):
        states.require_in_service(Selection(flat={**BIASED, **VICTIM}))


def test_the_quarantine_of_a_mandatory_one_refuses_every_request() -> None:
    spec = spec_of(faulty.Native)
    states = ProcessorStates(load_processors([spec], {spec: faulty.Native}, mandatory=["Native"]))
    states.update([ProcessorStats("Native", state=QUARANTINED, last_error="broken")])
    for selection in (Selection(), Selection(named={})):
        assert states.used_by(selection) == ["Native"]
        with pytest.raises(ProcessorUnavailableError, match="Native is in quarantine"):
            states.require_in_service(selection)
