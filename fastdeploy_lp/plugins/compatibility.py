"""The releases of fastdeploy_lp that a plugin supports, declared in its package's metadata or its code."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from fastdeploy_lp.plugins.plugin import IncompatibleVersionError
from fastdeploy_lp.version import __version__

OWN_NAME = "fastdeploy-lp"
ADVICE = f"install a release of {OWN_NAME} that it is for, or a release of it for this one"

Params = ParamSpec("Params")
Result = TypeVar("Result")


def own_requirements(lines: Iterable[str]) -> tuple[str, ...]:
    """Returns a distribution's `Requires-Dist` lines about fastdeploy_lp that apply in this environment."""
    return tuple(line for line in lines if _is_own(line))


def unmet_requirement(requirements: Iterable[str], version: str = __version__) -> str | None:
    """Returns the first requirement that `version` of fastdeploy_lp does not meet; None if it meets all."""
    for line in requirements:
        if not Requirement(line).specifier.contains(version, prereleases=True):
            return f"{OWN_NAME}{Requirement(line).specifier}"
    return None


def require_version(specifier: str) -> None:
    """Raises IncompatibleVersionError unless this release of fastdeploy_lp is in `specifier`, such as ">=0.1,<0.3".

    Raises ValueError for an invalid specifier.
    """
    _require(_specifier_set(specifier))


def requires_version(specifier: str) -> Callable[[Callable[Params, Result]], Callable[Params, Result]]:
    """Returns a decorator for a plugin's function: each call checks `require_version(specifier)` first.

    Raises ValueError for an invalid specifier.
    """
    allowed = _specifier_set(specifier)

    def decorate(function: Callable[Params, Result]) -> Callable[Params, Result]:
        if isinstance(function, type):
            raise TypeError(
                f"requires_version: {function.__name__} is a class; call require_version({specifier!r}) where its "
                "module begins"
            )

        @functools.wraps(function)
        def checked(*args: Params.args, **kwargs: Params.kwargs) -> Result:
            _require(allowed)
            return function(*args, **kwargs)

        return checked

    return decorate


def _specifier_set(specifier: str) -> SpecifierSet:
    try:
        return SpecifierSet(specifier)
    except InvalidSpecifier:
        raise ValueError(f"{specifier!r} is no version specifier; write one such as '>=0.1,<0.3'") from None


def _require(allowed: SpecifierSet) -> None:
    if not allowed.contains(__version__, prereleases=True):
        raise IncompatibleVersionError(f"needs {OWN_NAME}{allowed}, this is {__version__}; {ADVICE}")


def _is_own(line: str) -> bool:
    try:
        requirement = Requirement(line)
    except InvalidRequirement:
        return False
    if canonicalize_name(requirement.name) != OWN_NAME:
        return False
    return requirement.marker is None or requirement.marker.evaluate({"extra": ""})
