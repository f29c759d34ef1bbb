"""Selects this process's platform: one from a plugin, or the first built-in platform that fits the machine."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping

from fastdeploy_lp.platforms.base import Platform
from fastdeploy_lp.plugins import (
    PLUGINS_VARIABLE,
    LoadedPlugin,
    PluginGroup,
    UnknownPluginError,
    allowed_plugins,
    call,
    load_class,
    load_group,
    load_named,
)
from fastdeploy_lp.plugins.loader import failure

PLATFORM_VARIABLE = "FASTDEPLOY_LP_PLATFORM"

# In the order in which they are tried.
PLATFORMS: dict[str, str] = {
    "gpu": "fastdeploy_lp.platforms.gpu:GpuPlatform",
    "cpu": "fastdeploy_lp.platforms.cpu:CpuPlatform",
}


@functools.cache
def current_platform() -> Platform:
    """Returns the platform that this process serves on, selected by the first call."""
    return find_platform(os.environ)


def find_platform(environ: Mapping[str, str]) -> Platform:
    """Returns the platform that `FASTDEPLOY_LP_PLATFORM` names, else a plugin's platform, else the first that fits.

    Raises ValueError for an unknown name or a platform that does not fit the machine, PluginError (a ValueError) for a
    plugin that fails, and ValueError naming both if two plugins claim the machine.
    """
    name = environ.get(PLATFORM_VARIABLE)
    if name:
        return _named(name)
    claims = {loaded.name: found for loaded in load_group(PluginGroup.PLATFORM) if (found := platform_of(loaded))}
    if len(claims) > 1:
        raise ValueError(
            f"{PluginGroup.PLATFORM.kind}s {' and '.join(claims)} all claim this machine; choose one by "
            f"{PLATFORM_VARIABLE}, or leave the others out by {PLUGINS_VARIABLE}"
        )
    return next(iter(claims.values()), None) or _first_that_fits()


def platform_of(loaded: LoadedPlugin) -> Platform | None:
    """Returns the platform of a plugin; None if its function reports that it does not fit the machine.

    Logs and raises PluginError if the function raises or names no platform.
    """
    path = call(loaded)
    if path is None:
        return None
    try:
        platform = _instance(path)
    except (Exception, SystemExit) as error:  # a plugin's class may raise anything
        raise failure(loaded.plugin, f"{loaded.plugin.value} gave no usable platform", error) from error
    return platform


def _instance(path: object) -> Platform:
    if not isinstance(path, str):
        raise TypeError(f"returned {path!r}; it must return the name of a class, 'module:Class', or None")
    platform: Platform = load_class(path, Platform)()
    if not isinstance(getattr(platform, "name", None), str):
        raise TypeError(f"{path} has no name; set `name` to a text")
    return platform


def _named(name: str) -> Platform:
    if name in PLATFORMS:
        found = load_class(PLATFORMS[name], Platform)
        if not found.is_supported():
            raise ValueError(f"{PLATFORM_VARIABLE}: {name} does not fit this machine or installation")
        platform: Platform = found()
        return platform
    try:
        loaded = load_named(PluginGroup.PLATFORM, name)
    except UnknownPluginError:
        names = [*PLATFORMS, *(plugin.name for plugin in allowed_plugins(PluginGroup.PLATFORM))]
        raise ValueError(f"{PLATFORM_VARIABLE}: {name!r} is no platform; there are: {', '.join(names)}") from None
    claimed = platform_of(loaded)
    if claimed is None:
        raise ValueError(f"{PLATFORM_VARIABLE}: {loaded.plugin} says that it does not fit this machine")
    return claimed


def _first_that_fits() -> Platform:
    kinds = [load_class(path, Platform) for path in PLATFORMS.values()]
    platform: Platform = next(kind for kind in kinds if kind.is_supported())()
    return platform
