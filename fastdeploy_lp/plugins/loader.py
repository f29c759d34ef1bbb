"""Imports plugins and classes by their names; reports failures in one line, and logs a traceback."""

from __future__ import annotations

import importlib
import logging
import re
from importlib.metadata import EntryPoint
from typing import Any

from fastdeploy_lp.plugins.compatibility import ADVICE, unmet_requirement
from fastdeploy_lp.plugins.installed import PLUGINS_VARIABLE, allowed_plugins, installed_plugins
from fastdeploy_lp.plugins.plugin import (
    IncompatibleVersionError,
    LoadedPlugin,
    Plugin,
    PluginError,
    PluginGroup,
    PluginState,
    UnknownPluginError,
    running,
)
from fastdeploy_lp.version import __version__

PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
DOTTED = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\.([A-Za-z_]\w*)")


def normalized_path(name: object) -> str:
    """Returns "module:Class" for itself and for "module.Class"; raises ValueError for anything else."""
    if isinstance(name, str):
        if PATH.fullmatch(name):
            return name
        if dotted := DOTTED.fullmatch(name):
            return f"{dotted[1]}:{dotted[2]}"
    raise ValueError(f"{name!r} is no name of a class; write module:Class")


def load_class(name: str, base: type | None = None) -> type[Any]:
    """Returns the class that "module:Class" or "module.Class" names.

    Raises ValueError, which names the module, the class or the base class, if the module or the class does not exist,
    or if the class is no subclass of `base`. An exception from the import is the cause of the ValueError.
    """
    path = normalized_path(name)
    module_name, _, class_name = path.partition(":")
    found: Any = _module(module_name, path)
    for part in class_name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"{path!r}: the module {module_name} has no {class_name}")
        found = getattr(found, part)
    if not isinstance(found, type):
        raise ValueError(f"{path!r} is no class but a {type(found).__name__}")
    if base is not None and not issubclass(found, base):
        raise ValueError(f"{path!r} must be a subclass of {base.__module__}:{base.__qualname__}")
    return found


def _module(name: str, path: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        absent = error.name or name
        if name == absent or name.startswith(f"{absent}."):
            raise ValueError(f"{path!r}: there is no module {absent}") from None
        raise ValueError(f"{path!r}: importing {name} failed: {error}") from error
    except (Exception, SystemExit) as error:  # a plugin's module may raise anything
        text = " ".join(str(error).split())
        raise ValueError(f"{path!r}: importing {name} failed: {type(error).__name__}: {text}") from error


logger = logging.getLogger(__name__)


def load_group(group: PluginGroup) -> list[LoadedPlugin]:
    """Imports the plugins of a group that may load, in the order of their names.

    A plugin that cannot be used is logged, with its traceback if any, and skipped if the group skips failures;
    otherwise raises PluginError.
    """
    loaded = []
    for plugin in allowed_plugins(group):
        try:
            loaded.append(load(plugin))
        except PluginError:
            if not group.skips_failures:
                raise
    return loaded


def load_named(group: PluginGroup, name: str) -> LoadedPlugin:
    """Imports only the plugin of a group with this name.

    Raises UnknownPluginError listing the existing names, and PluginError if the plugin cannot be used.
    """
    plugins = allowed_plugins(group)
    # Of two plugins with one name, the last has `namesake` set, and loading it fails.
    plugin = next((each for each in reversed(plugins) if each.name == name), None)
    if plugin is not None:
        return load(plugin)
    names = ", ".join(each.name for each in plugins) or "none"
    left_out = any(each.name == name for each in installed_plugins(group))
    hint = f"; {PLUGINS_VARIABLE} leaves it out" if left_out else ""
    raise UnknownPluginError(f"{name!r} is no {group.kind} that may load here{hint}; there are: {names}")


def load(plugin: Plugin) -> LoadedPlugin:
    """Imports the object that the entry point names.

    Logs and raises PluginError for a plugin that requires another release of fastdeploy_lp (which is not imported),
    for the second of one name, and for any exception of the import.
    """
    refuse_unusable(plugin)
    try:
        with running(plugin):
            return LoadedPlugin(plugin, EntryPoint(plugin.name, plugin.value, plugin.group.value).load())
    except (Exception, SystemExit) as error:
        raise failure(plugin, "cannot be loaded", error) from error


def call(loaded: LoadedPlugin, *arguments: Any) -> Any:
    """Calls the plugin's function; logs and raises PluginError if it is no function or raises."""
    plugin = loaded.plugin
    if not callable(loaded.found):
        problem = f"names no function but a {type(loaded.found).__name__}; write module:function"
        raise _logged(PluginError(plugin, f"{plugin.value} {problem}"))
    try:
        with running(plugin):
            return loaded.found(*arguments)
    except (Exception, SystemExit) as error:
        raise failure(plugin, f"{plugin.value} raised", error) from error


def refuse_unusable(plugin: Plugin) -> None:
    """Logs and raises PluginError for faults that are detectable without an import."""
    if plugin.namesake is not None:
        reason = f"{plugin.namesake} has a {plugin.group.kind} of this name, too; uninstall one of the two packages"
        raise _logged(PluginError(plugin, reason))
    unmet = unmet_requirement(plugin.requirements)
    if unmet is not None:
        reason = f"needs {unmet}, this is {__version__}; {ADVICE}"
        raise _logged(PluginError(plugin, reason, PluginState.INCOMPATIBLE))


def failure(plugin: Plugin, problem: str, error: BaseException) -> PluginError:
    """Logs an exception of a plugin's code with its traceback, and returns the error to raise."""
    if isinstance(error, IncompatibleVersionError):
        return _logged(PluginError(plugin, str(error), PluginState.INCOMPATIBLE))
    cause = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return _logged(PluginError(plugin, f"{problem}: {cause}"), error)


def _logged(found: PluginError, cause: BaseException | None = None) -> PluginError:
    consequence = "it is skipped" if found.plugin.group.skips_failures else "nothing starts with it"
    logger.error("%s; %s", found, consequence, exc_info=cause)
    return found
