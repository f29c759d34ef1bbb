"""General plugins: functions that register models or other extensions, called in every process of the engine."""

from __future__ import annotations

import functools
import logging

from fastdeploy_lp.plugins.installed import PLUGINS_VARIABLE, allowed_plugins, unknown_names
from fastdeploy_lp.plugins.loader import call, load
from fastdeploy_lp.plugins.plugin import Plugin, PluginError, PluginGroup, PluginReport, PluginState

logger = logging.getLogger(__name__)


def load_general_plugins() -> list[PluginReport]:
    """Calls the function of every general plugin that may load, once per process even if this runs repeatedly.

    A plugin that cannot be used, or raises, is logged with its traceback and skipped; the others still load.
    """
    return [_outcome(plugin) for plugin in allowed_plugins(PluginGroup.GENERAL)]


def warn_of_unknown_names() -> None:
    """Logs the names in `FASTDEPLOY_LP_PLUGINS` that no installed plugin has."""
    for name in unknown_names():
        logger.warning("%s names %s, but no plugin of that name is installed", PLUGINS_VARIABLE, name)


def forget() -> None:
    """Makes the next `load_general_plugins` call every function again, which re-entrant functions allow."""
    _outcome.cache_clear()


# A plugin's function is called once per process: its registrations persist.
@functools.cache
def _outcome(plugin: Plugin) -> PluginReport:
    try:
        call(load(plugin))
    except PluginError as error:
        return PluginReport(plugin, error.state, error.reason)
    logger.info("%s is loaded", plugin)
    return PluginReport(plugin, PluginState.LOADED)
