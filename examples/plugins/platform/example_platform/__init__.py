"""A platform for a device that fastdeploy_lp does not support: here the CPU, with a different implementation."""

from __future__ import annotations

import os


def register() -> str | None:
    """Returns the name of the platform's class, or None if unavailable; called in every process of the engine.

    A platform for a real device would look for the device or its driver here, without importing Paddle.
    """
    if os.environ.get("EXAMPLE_PLATFORM_ABSENT"):
        return None
    return "example_platform.platform:ExamplePlatform"
