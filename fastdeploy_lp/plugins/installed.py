"""Installed plugins, and the subset that the operator allows to load."""

from __future__ import annotations

import os
from importlib.metadata import EntryPoint, entry_points

from fastdeploy_lp.plugins.compatibility import own_requirements
from fastdeploy_lp.plugins.plugin import Plugin, PluginGroup

PLUGINS_VARIABLE = "FASTDEPLOY_LP_PLUGINS"


def installed_plugins(group: PluginGroup) -> list[Plugin]:
    """Returns all plugins of a group, allowed or not, in the same order in every process: by name."""
    points = sorted(entry_points(group=group.value), key=lambda point: (point.name, _distribution(point)))
    first: dict[str, str] = {}
    found = []
    for point in points:
        namesake = first.get(point.name)
        first.setdefault(point.name, _distribution(point))
        found.append(_plugin(group, point, namesake))
    return found


def allowed_plugins(group: PluginGroup) -> list[Plugin]:
    """Returns the plugins of a group that `FASTDEPLOY_LP_PLUGINS` allows to load."""
    # To find the installed ones reads the metadata of all packages.
    return [] if allowed_names() == frozenset() else [each for each in installed_plugins(group) if may_load(each)]


def may_load(plugin: Plugin) -> bool:
    """Returns True if `FASTDEPLOY_LP_PLUGINS` names the plugin; if unset, it allows all plugins, if empty, none."""
    names = allowed_names()
    return names is None or plugin.name in names


def allowed_names() -> frozenset[str] | None:
    """Returns the names in `FASTDEPLOY_LP_PLUGINS`, None if it is not set."""
    value = os.environ.get(PLUGINS_VARIABLE)
    return None if value is None else frozenset(name.strip() for name in value.split(",") if name.strip())


def unknown_names() -> list[str]:
    """Returns names in `FASTDEPLOY_LP_PLUGINS` that no installed plugin has: most likely misspelled."""
    names = allowed_names()
    if not names:
        return []
    return sorted(names - {plugin.name for group in PluginGroup for plugin in installed_plugins(group)})


def _plugin(group: PluginGroup, point: EntryPoint, namesake: str | None) -> Plugin:
    requirements = own_requirements((point.dist.requires if point.dist else None) or [])
    version = point.dist.version if point.dist else "unknown"
    return Plugin(group, point.name, point.value, _distribution(point), version, requirements, namesake)


def _distribution(point: EntryPoint) -> str:
    return str(point.dist.name) if point.dist else "unknown"
