"""Finds the IO processor that an operator names among the installed plugins."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.plugins.class_path import load_class
from fastdeploy_lp.plugins.errors import PluginError
from fastdeploy_lp.plugins.group import PluginGroup
from fastdeploy_lp.plugins.io_processor import IOProcessor
from fastdeploy_lp.plugins.loader import call, failure, load_named
from fastdeploy_lp.plugins.plugin import LoadedPlugin, Plugin

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class NamedIOProcessor:
    """An IO processor under its plugin's name."""

    name: str
    processor: IOProcessor[Any, Any]


@dataclass(frozen=True)
class IOProcessorSource:
    """A plugin and its class."""

    plugin: Plugin
    found: type[IOProcessor[Any, Any]]

    def build(self, fd_config: FDConfig) -> NamedIOProcessor:
        """Builds the processor; logs and raises PluginError if that fails."""
        try:
            return NamedIOProcessor(self.plugin.name, self.found(fd_config))
        except (Exception, SystemExit) as error:
            raise failure(self.plugin, "cannot be made", error) from error


def find_io_processor(name: str) -> IOProcessorSource:
    """Returns the plugin of this name; imports no other plugin.

    Its entry point is a function that returns "module:Class", that string, or the class. Raises UnknownPluginError
    listing the existing names, and PluginError for a plugin that cannot be used.
    """
    return io_processor_of(load_named(PluginGroup.IO_PROCESSOR, name))


def io_processor_of(loaded: LoadedPlugin) -> IOProcessorSource:
    """Returns the class of a plugin; raises PluginError for a plugin that cannot be used."""
    found = loaded.found
    if not isinstance(found, (type, str)):
        found = call(loaded)
    return IOProcessorSource(loaded.plugin, _class_of(found, loaded))


def _class_of(found: object, loaded: LoadedPlugin) -> type[IOProcessor[Any, Any]]:
    try:
        if isinstance(found, type):
            return _require_io_processor(found)
        return _require_io_processor(load_class(found))  # type: ignore[arg-type]
    except ValueError as error:
        refused = PluginError(loaded.plugin, f"{loaded.plugin.value} leads to no IO processor: {error}")
        logger.error("%s", refused, exc_info=error.__cause__)
        raise refused from error


def _require_io_processor(found: type) -> type[IOProcessor[Any, Any]]:
    if not issubclass(found, IOProcessor):
        raise ValueError(f"{found.__name__} is not derived from fastdeploy_lp.IOProcessor")
    absent = ", ".join(sorted(getattr(found, "__abstractmethods__", ())))
    if absent:
        raise ValueError(f"{found.__name__} does not define {absent}")
    return found
