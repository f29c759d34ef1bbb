"""The choice of draft tokens for a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from fastdeploy_lp.config.speculation import Speculation
from fastdeploy_lp.worker.drafters.acceptance import Acceptance
from fastdeploy_lp.worker.drafters.drafter import Draft, Drafter
from fastdeploy_lp.worker.drafters.step_costs import StepCosts
from fastdeploy_lp.worker.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Proposal:
    """A draft, and the number of output tokens that it follows."""

    draft: Draft
    place: int


class Drafting:
    """Asks the drafters for drafts and decides how many tokens of each a step verifies; a follower of the slots.

    Of several drafts of a sequence it takes the one that is expected to have most right tokens, the first drafter's of
    equal ones. Every draft is compared with the tokens that were sampled, whether or not a step verified it, so that
    the estimates need no trial.
    """

    def __init__(self, settings: Speculation, drafters: Iterable[Drafter], costs: StepCosts) -> None:
        self._settings = settings
        self._drafters = tuple(drafters)
        self.costs = costs
        self._acceptance = Acceptance({kind: share for each in self._drafters for kind, share in each.kinds.items()})
        self._proposals: dict[int, Proposal] = {}

    def enter(self, sequence: Sequence) -> None:
        """Registers a sequence in its slot."""
        for drafter in self._drafters:
            drafter.enter(sequence)

    def leave(self, slot: int) -> None:
        """Clears a slot."""
        self._proposals.pop(slot, None)
        self._acceptance.leave(slot)
        for drafter in self._drafters:
            drafter.leave(slot)

    def drafts(self, sequences: Iterable[Sequence], tokens: int, room: int) -> Mapping[int, Draft]:
        """Returns drafts by slot for sequences that compute one token each in a step of `tokens` tokens.

        room: tokens that may be added to the step.
        """
        generating = list(sequences)
        if self._settings.adaptive and not Plan(self.costs, tokens, len(generating)).pays(1.0, len(generating)):
            return {}
        found: dict[int, Draft] = {}
        for sequence in generating:
            if not sequence.params.speculative:
                continue
            self._learn(sequence)
            # Each row yields a token, also the last one.
            left = sequence.max_tokens - len(sequence.output_token_ids) - 1
            draft = self._best(sequence, min(self._settings.num_speculative_tokens, left))
            if draft is not None:
                found[sequence.slot] = draft
                self._proposals[sequence.slot] = Proposal(draft, len(sequence.output_token_ids))
        if not self._settings.adaptive:
            return _cut_to(found, room)
        lengths = self._lengths(found, tokens, room, len(generating))
        return {slot: Draft(found[slot].tokens[:length], found[slot].kind) for slot, length in lengths.items()}

    def _best(self, sequence: Sequence, count: int) -> Draft | None:
        """Returns the draft that is expected to have most right tokens."""
        if count <= 0:
            return None

        def expected(draft: Draft) -> float:
            share = self._acceptance.share(sequence.slot, draft.kind)
            return sum(share**place for place in range(1, len(draft.tokens) + 1))

        found = [draft for each in self._drafters if (draft := each.draft(sequence, count)) is not None]
        return found[0] if len(found) == 1 else max(found, key=expected, default=None)

    def _learn(self, sequence: Sequence) -> None:
        """Compares the sequence's last draft with the tokens that came."""
        proposal = self._proposals.pop(sequence.slot, None)
        if proposal is None:
            return
        drafted = proposal.draft.tokens
        came = sequence.output_token_ids[proposal.place : proposal.place + len(drafted)]
        right = next((place for place, token in enumerate(came) if token != drafted[place]), len(came))
        self._acceptance.learn(sequence.slot, proposal.draft.kind, right, min(right + 1, len(came)))

    def _lengths(self, found: Mapping[int, Draft], tokens: int, room: int, samples: int) -> dict[int, int]:
        """Returns how many tokens of each draft to verify: the likeliest next one is added while it pays."""
        shares = {slot: self._acceptance.share(slot, draft.kind) for slot, draft in found.items()}
        # Number of drafts that have a token in each round.
        reach = Counter(place for draft in found.values() for place in range(len(draft.tokens)))
        heap = [(-share, slot) for slot, share in shares.items()]
        heapify(heap)
        lengths: dict[int, int] = {}
        plan = Plan(self.costs, tokens, samples)
        while heap and room:
            likely, slot = -heap[0][0], heap[0][1]
            place = lengths.get(slot, 0)
            if not plan.pays(likely, reach[place]):
                break
            heappop(heap)
            plan.add(likely, reach[place])
            room -= 1
            lengths[slot] = place + 1
            if place + 1 < len(found[slot].tokens):
                heappush(heap, (-likely * shares[slot], slot))
        return lengths


class Plan:
    """A step as it grows: its tokens, the seconds that it takes, and the tokens that it is expected to yield."""

    def __init__(self, costs: StepCosts, tokens: int, samples: int) -> None:
        self._costs = costs
        self._tokens = tokens
        # The first round costs about the same as each further one.
        self._seconds = costs.of(tokens) + costs.round_seconds
        self._expected = float(samples)

    def pays(self, likely: float, sharing: int) -> bool:
        """Returns True if a draft token yields more tokens per second than the step does without it.

        likely: the probability that it is right. sharing: drafts that have a token in its round.
        """
        return likely * self._seconds > self._expected * self._extra(likely, sharing)

    def add(self, likely: float, sharing: int) -> None:
        """Adds the draft token."""
        self._seconds += self._extra(likely, sharing)
        self._expected += likely
        self._tokens += 1

    def _extra(self, likely: float, sharing: int) -> float:
        of_pass = self._costs.of(self._tokens + 1) - self._costs.of(self._tokens)
        return of_pass + likely * self._costs.round_seconds / sharing


def _cut_to(found: Mapping[int, Draft], room: int) -> dict[int, Draft]:
    kept: dict[int, Draft] = {}
    for slot, draft in found.items():
        tokens = draft.tokens[:room]
        room -= len(tokens)
        if tokens:
            kept[slot] = Draft(tokens, draft.kind)
    return kept
