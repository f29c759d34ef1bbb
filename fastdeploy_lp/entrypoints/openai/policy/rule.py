"""A rule of the policy, checked against the declared processors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from fastdeploy_lp.entrypoints.openai.policy.policy_file import CONTROL
from fastdeploy_lp.entrypoints.openai.protocol.request import GenerationRequest
from fastdeploy_lp.logits_processor.arguments.request import NOTHING_IMPOSED, Imposed


@dataclass(frozen=True)
class RuleVariant:
    """Part of a rule's requests; share: from 0 to 1."""

    name: str
    share: float
    imposed: Imposed


@dataclass(frozen=True)
class Rule:
    """The operator's part of a client's requests. by: the field whose hash selects among the variants.

    uploads: True if the client may upload logits processors.
    """

    name: str = ""
    imposed: Imposed = NOTHING_IMPOSED
    by: str = "request_id"
    variants: Sequence[RuleVariant] = ()
    uploads: bool = False

    def of(self, request: GenerationRequest, key: str, request_id: str) -> RuleVariant:
        """Returns the variant of a request, the rule's own chain as the variant "control".

        key: of its client. request_id: selects the variant of a request without the field.
        """
        place = 0.0 if not self.variants else self._place(request, key, request_id)
        for variant in self.variants:
            if place < variant.share:
                return variant
            place -= variant.share
        return RuleVariant(CONTROL, 1.0, self.imposed)

    @property
    def secret(self) -> frozenset[str]:
        """Names that do not exist for the client in any variant."""
        return frozenset(self.imposed.secret).union(*(each.imposed.secret for each in self.variants))

    def _place(self, request: GenerationRequest, key: str, request_id: str) -> float:
        given = key if self.by == "key" else getattr(request, self.by, None)
        value = request_id if given is None else given
        digest = sha256(f"{self.name}\0{self.by}\0{value}".encode()).digest()
        return int.from_bytes(digest[:8], "big") / 2**64


NO_RULE = Rule()


@dataclass(frozen=True)
class Policy:
    """Rules by the digest of an API key, and the rule of all other clients."""

    by_key: dict[str, Rule] = field(default_factory=dict)
    others: Rule = NO_RULE

    def rule_of(self, digest: str) -> Rule:
        """Returns the rule of a client; digest: of its API key, "" without one."""
        return self.by_key.get(digest, self.others)

    @property
    def secret(self) -> frozenset[str]:
        """Names that do not exist for some client."""
        return frozenset[str]().union(self.others.secret, *(rule.secret for rule in self.by_key.values()))
