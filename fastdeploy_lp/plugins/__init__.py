"""Plugins: packages that extend fastdeploy_lp through entry points.

Imports neither the engine nor the worker nor Paddle; a plugin's module may import anything.
"""

from fastdeploy_lp.plugins.compatibility import require_version, requires_version
from fastdeploy_lp.plugins.general import load_general_plugins
from fastdeploy_lp.plugins.installed import PLUGINS_VARIABLE, allowed_plugins, installed_plugins, may_load
from fastdeploy_lp.plugins.loader import call, load, load_class, load_group, load_named, normalized_path
from fastdeploy_lp.plugins.plugin import (
    IncompatibleVersionError,
    LoadedPlugin,
    Plugin,
    PluginError,
    PluginGroup,
    PluginReport,
    PluginState,
    UnknownPluginError,
    running_plugin,
)

__all__ = [
    "PLUGINS_VARIABLE",
    "IncompatibleVersionError",
    "LoadedPlugin",
    "Plugin",
    "PluginError",
    "PluginGroup",
    "PluginReport",
    "PluginState",
    "UnknownPluginError",
    "allowed_plugins",
    "call",
    "installed_plugins",
    "load",
    "load_class",
    "load_general_plugins",
    "load_group",
    "load_named",
    "may_load",
    "normalized_path",
    "require_version",
    "requires_version",
    "running_plugin",
]
