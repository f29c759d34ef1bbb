"""The policy in force: read at the start, and again on SIGHUP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.entrypoints.openai.policy.policy_file import Chain, RuleSection, read_policy_file
from fastdeploy_lp.entrypoints.openai.policy.rule import NO_RULE, Policy, Rule, RuleVariant
from fastdeploy_lp.logits_processor import DeclaredProcessor, Selection
from fastdeploy_lp.logits_processor.arguments.request import Imposed
from fastdeploy_lp.request.sampling_params import SamplingParams
from fastdeploy_lp.request.suggestion import did_you_mean

logger = logging.getLogger(__name__)

DIGEST = "sha256:"


class Policies:
    """Holder of the policy of a file.

    declared: the chain. shadow: names that run in shadow for every request. chosen: returns the validated selection of
    a request, and raises InvalidRequestError. knows_keys: True if clients have API keys, to which rules can apply.
    """

    def __init__(
        self,
        path: str | Path,
        declared: Sequence[DeclaredProcessor],
        shadow: Sequence[str],
        chosen: Callable[[SamplingParams], Selection],
        *,
        knows_keys: bool,
    ) -> None:
        """Reads the file; raises ValueError that names what is wrong in it."""
        self._path = str(path)
        self._declared = {each.name: each for each in declared}
        self._shadow = frozenset(shadow)
        self._chosen = chosen
        self._knows_keys = knows_keys
        self._reloading: asyncio.Task[None] | None = None
        self.current = self._read()

    def reload_soon(self) -> None:
        """Begins to read the file again, unless it is being read."""
        if self._reloading is None or self._reloading.done():
            self._reloading = asyncio.get_running_loop().create_task(self.reload())

    async def reload(self) -> None:
        """Reads the file again; keeps the old policy, and logs the reason, if the new one is invalid.

        Requests that are admitted already keep the chain that they have.
        """
        try:
            self.current = await asyncio.to_thread(self._read)
        except ValueError as error:
            logger.error("%s; the policy stays as it was", error)
        else:
            logger.info("policy: %s was read again", self._path)

    def _read(self) -> Policy:
        by_key: dict[str, Rule] = {}
        others = NO_RULE
        for section in read_policy_file(self._path).rules:
            rule = self._rule(section)
            if section.keys and not self._knows_keys:
                raise self._wrong(
                    section.name,
                    "keys: clients of this server have none, and the rule would apply to no request; set --api-key",
                )
            if section.keys is None:
                others = rule
            by_key |= dict.fromkeys((key.removeprefix(DIGEST) for key in section.keys or ()), rule)
        return Policy(by_key, others)

    def _rule(self, section: RuleSection) -> Rule:
        imposed = self._imposed(section, section.name)
        if section.experiment is None:
            return Rule(section.name, imposed, uploads=section.uploads)
        variants = []
        for variant in section.experiment.variants:
            own = {name: getattr(variant, name) for name in variant.model_fields_set & Chain.model_fields.keys()}
            merged = Chain(**{name: getattr(section, name) for name in Chain.model_fields} | own)
            variants.append(RuleVariant(variant.name, variant.share, self._imposed(merged, variant.name)))
        return Rule(section.name, imposed, section.experiment.by, variants, section.uploads)

    def _imposed(self, chain: Chain, rule: str) -> Imposed:
        for name in chain.names:
            if name not in self._declared:
                known = ", ".join(self._declared) or "none"
                guess = did_you_mean(name, self._declared)
                raise self._wrong(rule, f"no logits processor {name!r} is declared{guess}; declared are {known}")
        forced = {name: self._settled(rule, "force", name, args) for name, args in chain.force.items()}
        default = {name: self._settled(rule, "default", name, args) for name, args in chain.default.items()}
        return Imposed(forced, default, self._withheld(chain, rule), chain.max_tokens)

    def _withheld(self, chain: Chain, rule: str) -> tuple[str, ...]:
        mandatory = [name for name, each in self._declared.items() if each.mandatory]
        for name in mandatory:
            if name in chain.forbid:
                raise self._wrong(rule, f"forbid: {name} is mandatory on this server")
        if chain.allow is None:
            return tuple(chain.forbid)
        allowed = {*chain.allow, *chain.force, *chain.default, *mandatory}
        return tuple(name for name in self._declared if name not in allowed)

    def _settled(self, rule: str, field: str, name: str, args: Mapping[str, Any]) -> dict[str, Any]:
        if name in self._shadow:
            raise self._wrong(rule, f"{field}: {name} is in shadow on this server, where it changes nothing")
        if not args and getattr(self._declared[name].found, "only_with_args", False):
            raise self._wrong(rule, f"{field}: {name} changes only requests that pass it arguments, and has none here")
        try:
            selection = self._chosen(SamplingParams(logits_processors={name: dict(args)}))
        except InvalidRequestError as error:
            raise self._wrong(rule, f"{field}: {error}") from None
        return (selection.named or {})[name]

    def _wrong(self, rule: str, reason: str) -> ValueError:
        return ValueError(f"policy: {self._path}: {rule}: {reason}")
