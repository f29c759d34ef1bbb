"""One plugin: its entry point, the loaded object, and its state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from typing import Any

from fastdeploy_lp.plugins.group import PluginGroup


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
