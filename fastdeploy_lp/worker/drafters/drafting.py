"""The choice of draft tokens for a step."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from collections.abc import Sequence as AnySequence
from copy import copy
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf
from typing import NamedTuple

from fastdeploy_lp.config.speculation import GRAMMAR, LAYOUT, Speculation
from fastdeploy_lp.worker.drafters.acceptance import Acceptance
from fastdeploy_lp.worker.drafters.drafter import Draft, Drafter, Part
from fastdeploy_lp.worker.drafters.layouts import Layouts
from fastdeploy_lp.worker.drafters.payoff import Payoff
from fastdeploy_lp.worker.drafters.step_costs import StepCosts
from fastdeploy_lp.worker.logits_mask import Followed, Lead
from fastdeploy_lp.worker.sequence import Sequence

# Output tokens after which a sequence tries a drafter again whose drafts did not pay off.
TRIAL_TOKENS = 128
# Tokens after the best plan that may make up a better one: a tile of the operators' rows.
LOOK_AHEAD = 16
TOGETHER = (1, 2, 4, 8, LOOK_AHEAD)
Follow = Callable[[Mapping[int, Lead]], Mapping[int, Followed]]


class Proposal(NamedTuple):
    """A draft, and the number of output tokens that it follows. A tuple, which takes less time to make."""

    draft: Draft
    place: int


class Look(NamedTuple):
    """Drafts by slot, and the seconds that they are expected to save."""

    drafts: Mapping[int, Draft]
    saved: float = 0.0


NOTHING_FOUND = Look({})


class Drafting:
    """Asks the drafters for drafts and decides how many tokens of each a step verifies; a follower of the slots.

    Of several drafts of a sequence it takes the one that is expected to have most right tokens, the first drafter's of
    equal ones. Every draft is compared with the tokens that were sampled, whether or not a step verified it, so that
    the estimates need no trial. Drafters whose drafts take time draft only where these are expected to be better than
    the other ones and to pay off with that time; now and then a sequence tries one token of them.

    takes_rounds: returns True for a slot whose draft tokens are verified in rounds, False if all at once.
    follow: see `LogitsMask.follow`; then a draft ends where its sequence's grammar does not allow it, and continues
    there with the tokens that the grammar forces. layouts: with them also with likely marks and white space.
    """

    def __init__(
        self,
        settings: Speculation,
        drafters: Iterable[Drafter],
        costs: StepCosts,
        takes_rounds: Callable[[int], bool] = lambda _: True,
        follow: Follow | None = None,
        layouts: Layouts | None = None,
    ) -> None:
        self._settings = settings
        self._drafters = tuple(drafters)
        self._free = [each for each in self._drafters if each.passes is None]
        self._paid = [each for each in self._drafters if each.passes is not None]
        # This step: its number, and the drafters that may have drafts, which cost no time.
        self._step = 0
        self._working = self._free
        self.costs = costs
        self._takes_rounds = takes_rounds
        self._follow = follow
        self._layouts = layouts
        self._acceptance = Acceptance({kind: share for each in self._drafters for kind, share in each.kinds.items()})
        self._proposals: dict[int, Proposal] = {}
        # By slot, the number of output tokens at the last draft that took time.
        self._tried: dict[int, int] = {}
        # Steps one after another are mostly of one size.
        self._last_step: tuple[int, int, int, float] | None = None
        self._last_plan: Plan | None = None
        self._payoff = Payoff(costs.of(1))

    def enter(self, sequence: Sequence) -> None:
        """Registers a sequence in its slot."""
        for drafter in self._drafters:
            drafter.enter(sequence)

    def leave(self, slot: int) -> None:
        """Clears a slot."""
        self._proposals.pop(slot, None)
        self._tried.pop(slot, None)
        self._acceptance.leave(slot)
        for drafter in self._drafters:
            drafter.leave(slot)

    def needs_each_token(self, slot: int) -> bool:  # noqa: ARG002
        """Returns False: it sees the tokens before the next step."""
        return False

    def drafts(self, sequences: Iterable[Sequence], tokens: int, room: int) -> Mapping[int, Draft]:
        """Returns drafts by slot for sequences that compute one token each in a step of `tokens` tokens.

        room: tokens that may be added to the step.
        """
        self._step = step = self._step + 1
        due = [each for each in self._free if each.next_step <= step]
        if not (due or self._paid):
            return {}
        generating = list(sequences)
        plan = self._plan(tokens, len(generating), room)
        least, one_each = (plan.least, plan.one_each) if self._settings.adaptive else (-inf, 0.0)
        self._working = [each for each in due if each.begin_step(step, one_each)]
        paid = [each for each in self._paid if each.begin_step(step, one_each)]
        if least >= 1.0 or not (self._working or paid):
            return {}
        # Drafts that take time are made only where they pay off.
        if paid or not self._settings.adaptive:
            return self._look(generating, paid, plan, least).drafts
        if self._payoff.rests():
            return {}
        began = time.perf_counter()
        look = self._look(generating, paid, plan, least)
        self._payoff.looked(time.perf_counter() - began, look.saved)
        return look.drafts

    def _look(self, generating: Iterable[Sequence], paid: AnySequence[Drafter], plan: Plan, least: float) -> Look:
        """Finds drafts of all sequences, and chooses how many tokens of each a step verifies."""
        asked: dict[int, Asked] = {}
        found: dict[int, Draft] = {}
        guided: dict[int, Lead] = {}
        for sequence in generating:
            if not sequence.params.speculative:
                continue
            slot, place = sequence.slot, len(sequence.output_token_ids)
            if slot in self._proposals:
                self._learn(slot, self._proposals.pop(slot), sequence.output_token_ids)
            # Each row yields a token, also the last one.
            count = min(self._settings.num_speculative_tokens, sequence.max_tokens - place - 1)
            if count <= 0:
                continue
            if paid:
                asked[slot] = Asked(sequence, count)
            draft = self._best_free(sequence, count)
            if draft is None:
                continue
            self._proposals[slot] = Proposal(draft, place)
            if self._acceptance.share(slot, draft.kind) > least:
                found[slot] = draft
                if sequence.grammar is not None:
                    self._add_lead(guided, sequence, draft, count)
        if guided and self._follow is not None:
            self._follow_grammars(self._follow, found, guided)
        if not found and not paid:
            return NOTHING_FOUND
        for drafter in paid:
            for slot, draft in self._paid_drafts(drafter, asked, found, plan).items():
                found[slot] = draft
                self._proposals[slot] = Proposal(draft, len(asked[slot].sequence.output_token_ids))
        if not found:
            return NOTHING_FOUND
        if not self._settings.adaptive:
            return Look(_cut_to(found, plan.room))
        most = max(self._acceptance.share(slot, draft.kind) for slot, draft in found.items())
        expected = sum(self._expected(slot, draft) for slot, draft in found.items())
        if not plan.may_pay(most, expected):
            return NOTHING_FOUND
        rounds = self._rounds(found)
        if not rounds and not plan.may_pay(most, expected, self.costs.draw_seconds):
            return NOTHING_FOUND
        lengths, saved = _lengths({slot: self._chances(slot, draft) for slot, draft in found.items()}, rounds, plan)
        return Look(
            {slot: Draft(found[slot].tokens[:count], found[slot].kind) for slot, count in lengths.items()}, saved
        )

    def _add_lead(self, leads: dict[int, Lead], sequence: Sequence, draft: Draft, most: int) -> None:
        """Adds a draft that its grammar may cut, or that may go on."""
        layout = None if self._layouts is None else self._layouts.of(sequence.client)
        likely = None if layout is None else layout.following(sequence.output_token_ids[-2:])
        if draft.kind != GRAMMAR or (likely is not None and len(draft.tokens) < most):
            leads[sequence.slot] = Lead(draft.tokens, most, likely)

    def _follow_grammars(self, follow: Follow, found: dict[int, Draft], leads: Mapping[int, Lead]) -> None:
        """Changes drafts to what their grammars allow, with the tokens that come there."""
        for slot, (allowed, runs) in follow(leads).items():
            tokens, parts = found[slot].tokens[:allowed], [Part(found[slot].kind, allowed)] if allowed else []
            for run in runs:
                tokens = tokens + run.tokens
                parts.append(Part(GRAMMAR if run.forced else LAYOUT, len(run.tokens)))
            if tokens:
                found[slot] = draft = Draft(tokens, parts[0].kind, tuple(parts[1:]))
                self._proposals[slot] = self._proposals[slot]._replace(draft=draft)
            else:
                del found[slot], self._proposals[slot]

    def _plan(self, tokens: int, samples: int, room: int) -> Plan:
        """Returns the plan of a step without drafts, that of the last step if nothing has changed."""
        step = (tokens, samples, room, self.costs.round_seconds)
        if self._last_plan is None or step != self._last_step:
            self._last_step, self._last_plan = step, Plan(self.costs, tokens, samples, room)
        return self._last_plan

    def _best_free(self, sequence: Sequence, count: int) -> Draft | None:
        """Returns the draft without a cost that is expected to have most right tokens."""
        best = None
        for drafter in self._working:
            draft = drafter.draft(sequence, count)
            if draft is not None and (best is None or self._is_better(sequence.slot, draft, best)):
                best = draft
        return best

    def _is_better(self, slot: int, draft: Draft, other: Draft) -> bool:
        return self._expected(slot, draft) > self._expected(slot, other)

    def _expected(self, slot: int, draft: Draft) -> float:
        """Returns how many tokens of a draft are expected to be right."""
        if not draft.added:
            return _expected_right(self._acceptance.share(slot, draft.kind), len(draft.tokens))
        expected, reached = 0.0, 1.0
        for kind, size in draft.parts:
            share = self._acceptance.share(slot, kind)
            expected += reached * _expected_right(share, size)
            reached *= share**size
        return expected

    def _chances(self, slot: int, draft: Draft) -> list[float]:
        """Returns, for each token of a draft, the probability that it is right if the tokens before it are."""
        return [share for kind, size in draft.parts for share in [self._acceptance.share(slot, kind)] * size]

    def _paid_drafts(
        self, drafter: Drafter, asked: Mapping[int, Asked], found: Mapping[int, Draft], plan: Plan
    ) -> dict[int, Draft]:
        """Returns drafts by slot that take time, for sequences in which they are expected to be the best ones."""
        (kind,) = drafter.kinds
        others = {slot: self._expected(slot, draft) for slot, draft in found.items()}
        wanted = {
            slot: each.count
            for slot, each in asked.items()
            if _expected_right(self._acceptance.share(slot, kind), each.count) > others.get(slot, 0.0)
        }
        if self._settings.adaptive:
            wanted = self._trials(drafter, asked, found, plan) | self._worthwhile(drafter, kind, wanted, plan)
        for slot in wanted:
            self._tried[slot] = len(asked[slot].sequence.output_token_ids)
        drafter.prepare((asked[slot].sequence, count) for slot, count in wanted.items())
        drafts = {slot: drafter.draft(asked[slot].sequence, count) for slot, count in wanted.items()}
        return {
            slot: draft
            for slot, draft in drafts.items()
            if draft is not None and self._expected(slot, draft) > others.get(slot, 0.0)
        }

    def _worthwhile(self, drafter: Drafter, kind: str, wanted: Mapping[int, int], plan: Plan) -> dict[int, int]:
        """Returns how many tokens to draft by slot, with the seconds that drafting takes."""
        shares = {slot: self._acceptance.share(slot, kind) for slot in wanted}
        while True:
            chances = {slot: [shares[slot]] * count for slot, count in wanted.items()}
            lengths, _ = _lengths(chances, self._rounds(wanted), plan, drafter.passes)
            if len(lengths) == len(wanted):
                return lengths
            # The seconds of a pass were shared with sequences that have no draft.
            wanted = {slot: wanted[slot] for slot in lengths}

    def _rounds(self, slots: Iterable[int]) -> set[int]:
        return set(filter(self._takes_rounds, slots))

    def _trials(
        self, drafter: Drafter, asked: Mapping[int, Asked], found: Mapping[int, Draft], plan: Plan
    ) -> dict[int, int]:
        """Returns one token by slot for sequences that had no such draft for long, unless it could never pay off."""
        due = {}
        for slot, each in asked.items():
            place = len(each.sequence.output_token_ids)
            if place - self._tried.setdefault(slot, place) >= TRIAL_TOKENS and slot not in found:
                due[slot] = 1
        return due if plan.least_share(len(due), _seconds_each(drafter.passes, len(due))) < 1.0 else {}

    def _learn(self, slot: int, proposal: Proposal, output: list[int]) -> None:
        """Compares a sequence's last draft with the tokens that came."""
        draft, place = proposal
        came = output[place : place + len(draft.tokens)]
        right = 0
        while right < len(came) and came[right] == draft.tokens[right]:
            right += 1
        verified, before = min(right + 1, len(came)), 0
        for kind, size in draft.parts:
            if verified > before:
                self._acceptance.learn(slot, kind, max(min(right - before, size), 0), min(verified - before, size))
            before += size


def _lengths(
    chances: Mapping[int, AnySequence[float]],
    rounds: Set[int],
    plan: Plan,
    passes: StepCosts | None = None,
) -> tuple[dict[int, int], float]:
    """Returns how many tokens of each draft to verify, and the seconds that they are expected to save.

    These are the likeliest ones, and the number with the highest rate.

    A token that does not pay may be the first one of a tile whose other tokens cost little. chances: by slot, for each
    token of its draft, the probability that it is right if the tokens before it are; not empty. rounds: slots whose
    tokens are verified in rounds. passes: of drafts that are yet to be made, the seconds of drafting.
    """
    counts = {slot: len(each) for slot, each in chances.items()}
    # Number of drafts that have a token in each round; of all drafts, that have a token at each place.
    reach = Counter(place for slot in rounds for place in range(counts[slot])) if rounds else {}
    sharing = Counter(place for count in counts.values() for place in range(count)) if passes is not None else {}
    # One draw is for all tokens that are verified at once.
    drawing = plan.costs.draw_seconds
    heap = [(-each[0], slot) for slot, each in chances.items()]
    heapify(heap)
    added: list[int] = []
    lengths: Counter[int] = Counter()
    first, plan = plan, copy(plan)
    kept, best, saved = 0, plan.rate, 0.0
    while heap and len(added) < min(plan.room, kept + LOOK_AHEAD):
        negated, slot = heappop(heap)
        likely, place = -negated, lengths[slot]
        seconds = _seconds_each(passes, sharing[place]) if passes is not None else 0.0
        if slot in rounds:
            plan.add(likely, reach[place], seconds)
        else:
            plan.add(likely, inf, seconds + drawing)
            drawing = 0.0
        added.append(slot)
        lengths[slot] += 1
        if plan.rate > best:
            kept, best, saved = len(added), plan.rate, plan.saved(first)
        if place + 1 < counts[slot]:
            heappush(heap, (-likely * chances[slot][place + 1], slot))
    return dict(Counter(added[:kept])), saved


def _expected_right(share: float, count: int) -> float:
    """Returns how many of `count` tokens one after another are expected to be right, each of which is with `share`."""
    return count if share == 1.0 else share * (1.0 - share**count) / (1.0 - share)


def _seconds_each(passes: StepCosts | None, sharing: int) -> float:
    return passes.of(sharing) / sharing if passes is not None and sharing else 0.0


@dataclass(frozen=True, slots=True)
class Asked:
    """A sequence, and how many draft tokens it may have."""

    sequence: Sequence
    count: int


class Plan:
    """A step as it grows: its tokens, the seconds that it takes, and the tokens that it is expected to yield.

    room: draft tokens that it may have. least: the probability above which they may pay, see `least_share`. one_each:
    the probability above which one draft token of each sequence pays, which depends less on single measurements.
    """

    def __init__(self, costs: StepCosts, tokens: int, samples: int, room: int) -> None:
        self.costs = costs
        self.room = room
        self._tokens = tokens
        self._of_pass = costs.of(tokens)
        # Of the sequences alone: the step's prompts are computed in any case. The first round costs about the same as
        # each further one.
        self._seconds = costs.of(samples) + costs.round_seconds
        self._expected = float(samples)
        self.least = self.least_share(room)
        self.one_each = self._share(samples, 0.0)

    @property
    def rate(self) -> float:
        """Expected tokens per second."""
        return self._expected / self._seconds

    def saved(self, first: Plan) -> float:
        """Returns the seconds that steps like the first plan's would take longer for the same tokens."""
        return self._expected / first.rate - self._seconds

    def least_share(self, most: int, seconds: float = 0.0) -> float:
        """Returns the probability above which draft tokens may pay together, verified at no cost; infinite for none.

        most: the most tokens. seconds: the time that drafting one takes.
        """
        return min((self._share(count, seconds) for count in TOGETHER if count <= most), default=inf)

    def _share(self, count: int, seconds: float) -> float:
        of_tokens = self.costs.of(self._tokens + count) - self._of_pass
        return self._expected * (of_tokens / count + seconds) / self._seconds

    def may_pay(self, share: float, expected: float, seconds: float = 0.0) -> bool:
        """Returns False if no number of draft tokens pays, which is known without trying them.

        share: the largest probability that one is right. expected: how many of all are expected to be right. seconds:
        the time that they take beside the pass, however many they are.
        """
        of, rate = self.costs.of, self.rate
        least = self._of_pass - seconds
        for count in range(1, min(self.room, LOOK_AHEAD) + 1):
            right = min(count * share, expected)
            if right > rate * (of(self._tokens + count) - least):
                return True
            if right == expected:
                break
        return False

    def add(self, likely: float, sharing: float, seconds: float = 0.0) -> None:
        """Adds a draft token.

        likely: the probability that it is right. sharing: drafts that have a token in its round, infinite if it takes
        none. seconds: the time that drafting and drawing it takes.
        """
        of_pass = self.costs.of(self._tokens + 1)
        self._seconds += of_pass - self._of_pass + likely * self.costs.round_seconds / sharing + seconds
        self._of_pass = of_pass
        self._expected += likely
        self._tokens += 1


def _cut_to(found: Mapping[int, Draft], room: int) -> dict[int, Draft]:
    kept: dict[int, Draft] = {}
    for slot, draft in found.items():
        tokens = draft.tokens[:room]
        room -= len(tokens)
        if tokens:
            kept[slot] = Draft(tokens, draft.kind)
    return kept
