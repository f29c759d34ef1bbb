"""Errors of plugins."""

from __future__ import annotations

from fastdeploy_lp.plugins.plugin import Plugin, PluginState


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
