"""What is sent to the worker, what waits, and what a new worker is given."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fastdeploy_lp.engine.client.admission import ArrivalQueue, FairQueue, Outbox
from fastdeploy_lp.messages import AddRequest, SequenceStep

LIMIT = 3


class OutboxModel(RuleBasedStateMachine):
    """An outbox with a limit against plain lists: what is in flight in order, and what the worker was told."""

    def __init__(self) -> None:
        super().__init__()
        self.in_flight: list[str] = []
        self.worker: list[str] | None = None
        self.outbox = Outbox(self.send, ArrivalQueue(), LIMIT)
        self.count = 0

    def send(self, message: AddRequest) -> None:
        assert self.worker is not None
        assert message.request_id not in self.worker
        self.worker.append(message.request_id)

    @rule()
    def add(self) -> None:
        self.count += 1
        self.in_flight.append(str(self.count))
        self.outbox.add(AddRequest(str(self.count), [1]), "client")

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.in_flight))
        self.in_flight.remove(name)
        before = list(self.worker) if self.worker is not None else []
        assert self.outbox.remove([name, "unknown"]) == [each for each in before if each == name]
        if self.worker is not None and name in self.worker:
            self.worker.remove(name)

    @precondition(lambda self: self.worker is None)
    @rule()
    def open(self) -> None:
        self.worker = []
        self.outbox.open()

    @precondition(lambda self: self.worker is not None)
    @rule()
    def close(self) -> None:
        self.worker = None
        self.outbox.close()

    @invariant()
    def the_worker_has_the_oldest_up_to_the_limit(self) -> None:
        assert self.outbox.is_open == (self.worker is not None)
        assert self.outbox.held_by("client") == len(self.in_flight)
        assert len(self.outbox.sent) + self.outbox.num_waiting == len(self.in_flight)
        if self.worker is not None:
            assert self.worker == self.in_flight[:LIMIT]
            assert self.outbox.sent == self.worker


TestOutbox = OutboxModel.TestCase


def test_without_a_limit_everything_is_sent_at_once() -> None:
    sent: list[AddRequest] = []
    outbox = Outbox(sent.append, ArrivalQueue())
    outbox.open()
    for number in range(100):
        outbox.add(AddRequest(str(number), [1]), "")
    assert [message.request_id for message in sent] == [str(number) for number in range(100)]


def test_a_client_s_long_prompts_leave_the_worker_to_others() -> None:
    sent: list[AddRequest] = []
    outbox = Outbox(sent.append, FairQueue(), 40, prompt_tokens=8)
    outbox.open()
    for number in range(3):
        outbox.add(AddRequest(f"a{number}", [1] * 20), "a")
    for number in range(3):
        outbox.add(AddRequest(f"b{number}", [1] * 5), "b")
    # Two of the short ones are more than 8 tokens.
    assert [message.request_id for message in sent] == ["a0", "b0", "b1"]
    outbox.charge([SequenceStep("a0", [5])])
    assert [message.request_id for message in sent[3:]] == ["a1"]
    assert outbox.remove(["b0"]) == ["b0"]
    assert [message.request_id for message in sent[4:]] == ["b2"]
    outbox.charge([SequenceStep("a1", [5]), SequenceStep("a0", [6])])
    assert [message.request_id for message in sent[5:]] == ["a2"]
