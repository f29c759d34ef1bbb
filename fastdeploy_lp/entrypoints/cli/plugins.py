"""`fastdeploy-lp plugins`: lists the installed plugins and each one's status at a server's start."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from fastdeploy_lp.entrypoints.usage import CommandParser
from fastdeploy_lp.logits_processor import vllm_compat
from fastdeploy_lp.logits_processor.registry import find_dialect
from fastdeploy_lp.platforms import platform_of
from fastdeploy_lp.plugins import (
    PLUGINS_VARIABLE,
    LoadedPlugin,
    Plugin,
    PluginError,
    PluginGroup,
    PluginState,
    installed_plugins,
    load,
    load_general_plugins,
    may_load,
)
from fastdeploy_lp.plugins.installed import allowed_names, unknown_names
from fastdeploy_lp.plugins.io_processor import io_processor_of
from fastdeploy_lp.plugins.stat_logger import stat_logger_of


@dataclass(frozen=True)
class Row:
    """One plugin with its state, and a description or the reason why it is not loaded."""

    plugin: Plugin
    state: PluginState
    detail: str

    def as_dict(self) -> dict[str, object]:
        """Returns the fields that `--json` prints."""
        plugin = self.plugin
        return {
            "group": plugin.group.value,
            "name": plugin.name,
            "state": self.state.value,
            "detail": self.detail,
            "distribution": plugin.distribution,
            "version": plugin.version,
            "value": plugin.value,
            "requires": list(plugin.requirements),
        }


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> int:
    """Loads every allowed plugin and reports its status; returns 1 if one failed or is incompatible."""
    parser = CommandParser(
        prog=prog, description="Load the installed plugins as a server would, and say what became of each."
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--vllm-compat", action="store_true", help="read vLLM's entry points, as a server with it does")
    args = parser.parse_args(argv)
    if args.vllm_compat:
        vllm_compat.install()
    rows = [
        _row(plugin) if args.vllm_compat or plugin.group is not PluginGroup.VLLM_LOGITS_PROCESSOR else _vllms(plugin)
        for group in PluginGroup
        for plugin in installed_plugins(group)
    ]
    names = allowed_names()
    if args.json:
        listed = {"filter": None if names is None else sorted(names), "plugins": [row.as_dict() for row in rows]}
        print(json.dumps(listed, indent=2))
    else:
        print("\n".join(_lines(rows)))
    return int(any(row.state in (PluginState.FAILED, PluginState.INCOMPATIBLE) for row in rows))


def _vllms(plugin: Plugin) -> Row:
    return Row(plugin, PluginState.FILTERED, "vLLM's entry points load with --vllm-compat alone")


def _row(plugin: Plugin) -> Row:
    if not may_load(plugin):
        return Row(plugin, PluginState.FILTERED, f"{PLUGINS_VARIABLE} does not name it")
    if plugin.group is PluginGroup.GENERAL:
        report = next(each for each in load_general_plugins() if each.plugin == plugin)
        return Row(plugin, report.state, report.reason or "its function was called")
    try:
        return Row(plugin, PluginState.LOADED, _DETAILS[plugin.group](load(plugin)))
    except PluginError as error:
        return Row(plugin, error.state, error.reason)
    except ValueError as error:
        return Row(plugin, PluginState.FAILED, str(error))


def _platform(loaded: LoadedPlugin) -> str:
    platform = platform_of(loaded)
    return "does not claim this machine" if platform is None else f"claims this machine as {platform.name}"


def _logits_processor(loaded: LoadedPlugin) -> str:
    return f"{find_dialect(loaded.found, loaded.name).name} logits processor"


def _io_processor(loaded: LoadedPlugin) -> str:
    return f"leads to {_path(io_processor_of(loaded).found)}"


def _path(found: type) -> str:
    return f"{found.__module__}:{found.__qualname__}"


def _stat_logger(loaded: LoadedPlugin) -> str:
    stat_logger_of(loaded)
    return "a stat logger"


# Functions that describe a group's plugins; each raises ValueError for a plugin that does not fit its group.
_DETAILS: dict[PluginGroup, Callable[[LoadedPlugin], str]] = {
    PluginGroup.PLATFORM: _platform,
    PluginGroup.IO_PROCESSOR: _io_processor,
    PluginGroup.STAT_LOGGER: _stat_logger,
    PluginGroup.LOGITS_PROCESSOR: _logits_processor,
    PluginGroup.VLLM_LOGITS_PROCESSOR: _logits_processor,
}


def _lines(rows: Sequence[Row]) -> list[str]:
    lines = []
    for group, of_group in groupby(rows, key=lambda row: row.plugin.group):
        lines.append(f"{group.value}:")
        for row in of_group:
            plugin = row.plugin
            lines.append(f"  {plugin.name}  {row.state.value}  {plugin.distribution} {plugin.version}, {plugin.value}")
            lines.append(f"    {row.detail}")
    lines += [f"{PLUGINS_VARIABLE} names {name}, but no plugin of that name is installed" for name in unknown_names()]
    return lines or ["no plugins are installed"]
