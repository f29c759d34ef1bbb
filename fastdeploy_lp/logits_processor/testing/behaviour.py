"""Checks that a request gets the same rows in any slot and in any batch.

An instance that serves one request alone sets the expected rows. Each check then changes one circumstance, so that a
processor with one mistake fails one check.
"""

from __future__ import annotations

import random
from itertools import pairwise

from fastdeploy_lp.logits_processor.chain.recorded_actions import SlotActions
from fastdeploy_lp.logits_processor.dialects.per_request import PerRequestProcessor
from fastdeploy_lp.logits_processor.testing.harness import StepError
from fastdeploy_lp.logits_processor.testing.subject import (
    LENGTH,
    SLOTS,
    Acts,
    Advice,
    Fault,
    Rows,
    Script,
    Stage,
    Subject,
    differences,
    differs,
    require_same,
)

HALF = LENGTH // 2


def deterministic(subject: Subject) -> None:
    """Checks that another instance returns the same rows for the same steps."""
    again = subject.rows_alone(subject.scripts)
    require_same(
        subject.alone, again, "gives other logits for the same request each time: draw random numbers from its seed"
    )


def apply_again(subject: Subject) -> None:
    """Checks that a second `apply` in a step returns the same rows."""
    twice = subject.rows_alone(subject.using, applications=2)
    problem = "gives another row when apply runs again in a step, as it does when another processor fails"
    require_same(subject.alone, twice, f"{problem}: advance state in update_state")


def slot_number(subject: Subject) -> None:
    """Checks that rows do not depend on the slot number."""
    for slot in (1, SLOTS // 2, SLOTS - 1):
        rows = subject.rows_alone(subject.scripts, slot=slot)
        require_same(
            subject.alone, rows, f"gives another row in slot {slot}: row r is the r-th slot whose stop flag is False"
        )


def stopped_slots(subject: Subject) -> None:
    """Checks that rows do not depend on neighbour slots whose requests have other arguments and no row."""
    for index, script in enumerate(subject.scripts):
        stage = subject.stage()
        others = [
            subject.script(f"held-{each}", subject.using[(index + each) % len(subject.using)].args) for each in (1, 2)
        ]
        stage.enter(others[0], 0, held=True)
        stage.enter(script, 2)
        stage.enter(others[1], 5, held=True)
        stage.run(LENGTH)
        require_same(
            subject.alone,
            stage.rows,
            "takes a slot into account that is stopped: only those with stop flag False have rows",
        )


def row_isolation(subject: Subject) -> None:
    """Checks that rows do not depend on each other: all requests enter together, in either order."""
    for scripts in (subject.scripts, subject.scripts[::-1]):
        stage = subject.stage()
        for script in scripts:
            stage.enter(script)
        stage.run(LENGTH)
        require_same(subject.alone, stage.rows, "gives a row that depends on other rows of the batch")


def chunked_prefill(subject: Subject) -> None:
    """Checks that rows do not depend on steps in which the request has a slot but no row."""
    for script in subject.using:
        stage = subject.stage()
        stage.enter(subject.plain, 0)
        slot = stage.enter(script, 1, held=True)
        stage.run(HALF)
        stage.harness.release(slot)
        stage.run(LENGTH)
        require_same(
            subject.alone, _of(stage, script), "gives another row after steps in which the request was in its prompt"
        )


def slot_reuse(subject: Subject) -> None:
    """Checks that rows do not depend on an earlier request in the slot."""
    around = [*subject.scripts, subject.scripts[0]]
    for first, second in [*pairwise(around), *pairwise(around[::-1])]:
        for pause in (False, True):
            stage = subject.stage()
            earlier = subject.script("earlier", first.args)
            slot = stage.enter(earlier, 0)
            stage.run(HALF)
            stage.leave(slot)
            if pause:
                _bystander(stage, subject, slot=3)
            stage.enter(second, slot)
            stage.run(LENGTH)
            require_same(
                subject.alone, _of(stage, second), "lets a request see what an earlier one left in its slot: forget it"
            )


def preemption(subject: Subject) -> None:
    """Checks that a request gets the same rows after it leaves half way and resumes with its tokens in any slot."""
    for script in subject.using:
        for back, pause in ((0, False), (0, True), (4, False), (4, True)):
            stage = subject.stage()
            stage.enter(script, 0)
            stage.run(HALF)
            output = stage.leave(0)
            if pause:
                _bystander(stage, subject, slot=2)
            stage.enter(script, back, output=output)
            stage.run(LENGTH)
            require_same(
                subject.alone,
                _of(stage, script),
                "gives another row after a preemption: build state from the request's tokens, not from steps",
            )


def rewind(subject: Subject) -> None:
    """Checks that a request gets the same rows after its last tokens were taken back; raises Advice otherwise.

    It leaves its slot and enters it at once, beside other requests too. Only servers with a processor that takes tokens
    back do this.
    """
    rows: Rows = {}
    for script in subject.using:
        for count in (1, HALF):
            stage = subject.stage()
            slot = stage.enter(script, 1)
            for _ in range(2):
                stage.run(HALF - len(stage.harness.requests[slot].output))
                stage.harness.rewind(slot, count)
            stage.run(LENGTH)
            rows |= stage.rows
    rows |= _churned(subject, rewinds=0.2)
    found = next(differences(subject.alone | subject.crowd_alone, rows), None)
    if found is not None:
        problem = "gives another row after its last tokens were taken back: build state from the request's tokens"
        raise Advice(f"{problem}, for every new req_id or list of tokens ({found})")


def recovery(subject: Subject) -> None:
    """Checks that a new instance, built after a failure, returns the same rows; raises Advice otherwise.

    The requests are half way. Under the usual policy they are few: those with a row at the failure have ended.
    """
    for script in subject.using:
        stage = subject.stage()
        stage.enter(script, 0, output=list(script.tokens[:HALF]))
        stage.run(LENGTH)
        found = next(differences(subject.alone, stage.rows), None)
        if found is not None:
            problem = "built anew after a failure, gives running requests another row: build state from their tokens"
            raise Advice(f"{problem} ({found})")


def every_token(subject: Subject) -> None:
    """Checks that a request's instance needs no call for its first tokens; raises Advice otherwise."""
    for script in subject.using:
        stage = subject.stage()
        processor = stage.harness.entry.processor
        if not isinstance(processor, PerRequestProcessor):
            return
        slot = stage.enter(script, 0, output=list(script.tokens[:HALF]))
        processor.adopt(script.request_id, processor.new_instance(stage.harness.entry.view.args[slot]))
        try:
            stage.run(LENGTH)
            found = next((str(each) for each in differences(subject.alone, stage.rows)), None)
        except StepError as error:
            found = str(error)
        if found is not None:
            problem = "its instance has to be called for every token; a server keeps it during preemption and, where"
            raise Advice(f"{problem} it is built anew, calls it for the tokens so far on rows of zeros ({found})")


def churn(subject: Subject) -> None:
    """Checks the rows of requests that enter, are held, preempted and aborted, and end at random."""
    require_same(subject.crowd_alone, _churned(subject), "gives another row while requests come and go")


def _churned(subject: Subject, rewinds: float = 0.0) -> Rows:
    """Returns the rows of `crowd` after random entries, holds, preemptions and aborts.

    rewinds: the probability that a step is followed by a rewind.
    """
    source, stage = random.Random(subject.seed), subject.stage()
    scripts = {script.request_id: script for script in subject.crowd}
    harness, waiting = stage.harness, [(script, list[int]()) for script in subject.crowd]
    while waiting or harness.requests:
        free = SLOTS - len(harness.requests)
        for _ in range(min(source.choice((0, 1, 1, 3)), free, len(waiting))):
            script, output = waiting.pop(0)
            stage.enter(script, output=output, held=source.random() < 0.3)
        for slot in list(harness.requests):
            harness.release(slot) if source.random() < 0.6 else None
        if harness.active and source.random() < 0.3:
            slot = source.choice(harness.active)
            name = harness.requests[slot].request_id
            output = stage.leave(slot)
            if source.random() < 0.7:
                waiting.insert(0, (scripts[name], output))
        stage.run(1)
        rewindable = [slot for slot in harness.active if harness.requests[slot].output]
        if rewindable and source.random() < rewinds:
            slot = source.choice(rewindable)
            harness.rewind(slot, source.randint(1, len(harness.requests[slot].output)))
    return stage.rows


def actions(subject: Subject) -> None:
    """Checks that what the processor does to a request depends on no other request, slot, second `apply` or resume."""
    for applications in (1, 2):
        stage = subject.stage()
        for script in reversed(subject.scripts):
            stage.enter(script)
        stage.run(LENGTH, applications=applications)
        _require_same_acts(subject.acts_alone, stage.acts, "beside other requests")
    for script in subject.using:
        stage = subject.stage()
        stage.enter(script, 0)
        stage.run(HALF)
        stage.enter(script, 3, output=stage.leave(0))
        stage.run(LENGTH)
        expected = {key: acts for key, acts in subject.acts_alone.items() if key[0] == script.request_id}
        _require_same_acts(expected, stage.acts, "after a preemption")


def late_tokens(subject: Subject) -> str:
    """Returns how rows change where a server shows each token a step late; raises Advice if the processor fails there.

    FastDeploy's overlap schedule calls `update_state` before the host knows the newest token. This server does not.
    """
    for script in subject.using:
        harness = subject.harness()
        slot = harness.enter(script.request_id, script.args, prompt=script.prompt, params=script.params)
        for position in range(LENGTH):
            row = harness.random_row(script.request_id, position)
            try:
                harness.update()
                after = harness.apply(harness.tensor(row[None])).numpy()
            except StepError as error:
                raise Advice(f"fails where a server shows tokens a step late: {error}") from error
            if differs(subject.alone[script.request_id, position], after[0]) is not None:
                return "acts a token later where a server shows tokens a step late; this server never does"
            if position > 0:
                harness.slots.append_token(slot, script.tokens[position - 1])
    return "depends on no token that a server may show a step late"


def _require_same_acts(expected: Acts, actual: Acts, where: str) -> None:
    for name, position in sorted({*expected, *actual}):
        alone, found = (_printed(acts.get((name, position))) for acts in (expected, actual))
        if alone != found:
            step = f"{name}, step {position + 1}: {found} in place of {alone}"
            raise Fault(f"acts in another way {where}: act on a request by its own tokens and row alone ({step})")


def _printed(acts: SlotActions | None) -> str:
    if acts is None:
        return "nothing"
    ends = [] if acts.finish is None else [f"finish {acts.finish['reason']!r}"]
    back = [] if acts.rewind is None else [f"rewind {acts.rewind.count}, ban {sorted(acts.rewind.ban)}"]
    return ", ".join([*(f"emit {value.decode()}" for _, value in acts.values), *ends, *back])


def _bystander(stage: Stage, subject: Subject, slot: int) -> None:
    """Runs a step of another request in `slot`."""
    stage.enter(subject.plain, slot)
    stage.run(1)
    stage.leave(slot)


def _of(stage: Stage, script: Script) -> Rows:
    return {key: row for key, row in stage.rows.items() if key[0] == script.request_id}
