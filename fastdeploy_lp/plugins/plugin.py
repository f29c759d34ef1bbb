"""One plugin: its entry point, group, loaded object, state and errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from typing import Any


class PluginGroup(str, Enum):
    """One kind of plugin; the value is its entry-point group."""

    GENERAL = "fastdeploy_lp.general_plugins"
    PLATFORM = "fastdeploy_lp.platform_plugins"
    IO_PROCESSOR = "fastdeploy_lp.io_processor_plugins"
    STAT_LOGGER = "fastdeploy_lp.stat_logger_plugins"
    LOGITS_PROCESSOR = "fastdeploy_lp.logits_processors"
    # vLLM's own group, read only with --vllm-compat.
    VLLM_LOGITS_PROCESSOR = "vllm.logits_processors"

    @property
    def kind(self) -> str:
        """Name of a plugin of this group in messages."""
        return _KINDS[self]

    @property
    def skips_failures(self) -> bool:
        """True if a plugin that cannot be used is skipped; in the other groups it aborts the start."""
        return self is PluginGroup.GENERAL


_KINDS = {
    PluginGroup.GENERAL: "general plugin",
    PluginGroup.PLATFORM: "platform plugin",
    PluginGroup.IO_PROCESSOR: "IO-processor plugin",
    PluginGroup.STAT_LOGGER: "stat-logger plugin",
    PluginGroup.LOGITS_PROCESSOR: "logits-processor plugin",
    PluginGroup.VLLM_LOGITS_PROCESSOR: "vLLM logits-processor plugin",
}


@dataclass(frozen=True)
class Plugin:
    """An entry point of an installed distribution.

    name: its name in `FASTDEPLOY_LP_PLUGINS` and messages. value: "module:attribute".
    distribution, version: the installed package. requirements: its `Requires-Dist` lines that name fastdeploy_lp.
    namesake: the distribution of an earlier plugin of this group and name; None if there is none.
    """

    group: PluginGroup
    name: str
    value: str
    distribution: str
    version: str
    requirements: tuple[str, ...] = ()
    namesake: str | None = None

    def __str__(self) -> str:
        return f"{self.group.kind} {self.name} ({self.distribution} {self.version})"


@dataclass(frozen=True)
class LoadedPlugin:
    """A plugin whose module is imported; `found` is the object that its entry point names."""

    plugin: Plugin
    found: Any

    @property
    def name(self) -> str:
        """The entry point's name."""
        return self.plugin.name


class PluginState(str, Enum):
    """State of an installed plugin in this process."""

    LOADED = "loaded"
    FILTERED = "filtered"
    INCOMPATIBLE = "incompatible"
    FAILED = "failed"


@dataclass(frozen=True)
class PluginReport:
    """A plugin's state, and the reason in one line if it is not loaded."""

    plugin: Plugin
    state: PluginState
    reason: str = ""


_running: ContextVar[Plugin | None] = ContextVar("running_plugin", default=None)


def running_plugin() -> Plugin | None:
    """Returns the plugin whose function is running, so that its registrations can be attributed to it."""
    return _running.get()


@contextmanager
def running(plugin: Plugin) -> Iterator[None]:
    """Inside, `running_plugin` returns `plugin`."""
    token = _running.set(plugin)
    try:
        yield
    finally:
        _running.reset(token)


class IncompatibleVersionError(RuntimeError):
    """The plugin does not support this release of fastdeploy_lp."""


class PluginError(ValueError):
    """A plugin cannot be used; the message names it, its package and the reason in one line."""

    def __init__(self, plugin: Plugin, reason: str, state: PluginState = PluginState.FAILED) -> None:
        super().__init__(f"{plugin}: {reason}")
        self.plugin = plugin
        self.reason = reason
        self.state = state


class UnknownPluginError(ValueError):
    """No plugin of the group has this name; the message lists the existing names."""
