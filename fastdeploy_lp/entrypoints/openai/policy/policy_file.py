"""The file of `--policy`: its form, and its reading."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
# A label of metrics and of the log.
_NAME = r"^[A-Za-z0-9_.-]{1,64}$"
CONTROL = "control"


def _digest(given: str) -> str:
    if _DIGEST.fullmatch(given) is None:
        raise ValueError("must be sha256: and the 64 hexadecimal digits of the key's SHA-256")
    return given


Name = Annotated[str, Field(pattern=_NAME)]
Digest = Annotated[str, AfterValidator(_digest)]
Arguments = dict[str, dict[str, Any]]


class Chain(BaseModel):
    """Processors of the requests of a rule.

    force: arguments by name of processors that run whatever a request asks for. default: arguments by name of
    processors that run unless the request names processors or passes one of their arguments. allow: the only names that
    a request may use, None for all. forbid: names that it may not use. max_tokens: the limit of a completion.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    force: Arguments = {}
    default: Arguments = {}
    allow: list[str] | None = None
    forbid: list[str] = []
    max_tokens: Annotated[int, Field(ge=1)] | None = None

    @property
    def names(self) -> Iterable[str]:
        """All names of processors."""
        return [*self.force, *self.default, *(self.allow or ()), *self.forbid]

    @model_validator(mode="after")
    def _consistent(self) -> Chain:
        for name in self.default:
            if name in self.force or name in self.forbid:
                raise ValueError(f"default: {name} is also in {'force' if name in self.force else 'forbid'}")
        for name in self.allow or ():
            if name in self.force or name in self.forbid:
                raise ValueError(f"allow: {name} is also in {'force' if name in self.force else 'forbid'}")
        return self


class Variant(Chain):
    """Another chain for a share of a rule's requests; a field that is set replaces the field of the rule."""

    name: Name
    share: Annotated[float, Field(gt=0, le=1, strict=False)]


class Experiment(BaseModel):
    """Variants of a rule. by: the request's field whose hash selects the variant; "key" is the API key."""

    model_config = ConfigDict(extra="forbid", strict=True)

    by: Literal["key", "user", "safety_identifier", "prompt_cache_key", "request_id"] = "request_id"
    variants: Annotated[list[Variant], Field(min_length=1)]

    @model_validator(mode="after")
    def _parts_of_one(self) -> Experiment:
        if sum(each.share for each in self.variants) > 1 + 1e-9:
            raise ValueError("variants: their shares are more than 1 together")
        names = [each.name for each in self.variants]
        if len(set(names)) < len(names) or CONTROL in names:
            raise ValueError(f"variants: names must differ from each other and from {CONTROL!r}")
        return self


class RuleSection(Chain):
    """A rule for the clients with these API keys, or without `keys`, for all others.

    uploads: True if they may upload logits processors, on a server that allows uploads.
    """

    name: Name
    keys: Annotated[list[Digest], Field(min_length=1)] | None = None
    experiment: Experiment | None = None
    uploads: bool = False


class PolicyFile(BaseModel):
    """The whole file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    rules: Annotated[list[RuleSection], Field(min_length=1)]

    @model_validator(mode="after")
    def _one_rule_each(self) -> PolicyFile:
        keys = [key for rule in self.rules for key in rule.keys or ("no key",)]
        if len(set(keys)) < len(keys):
            again = next(key for key in keys if keys.count(key) > 1)
            raise ValueError(f"rules: two rules are for {'all other clients' if again == 'no key' else again}")
        names = [rule.name for rule in self.rules]
        if len(set(names)) < len(names):
            raise ValueError("rules: names must differ")
        return self


def read_policy_file(path: str) -> PolicyFile:
    """Returns the file's content; raises ValueError that names the option, the file and the place in it."""
    try:
        return PolicyFile.model_validate(yaml.safe_load(Path(path).read_text()))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"policy: {path}: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        reason = first["msg"].removeprefix("Value error, ")
        raise ValueError(f"policy: {path}: {place + ': ' if place else ''}{reason}") from None
