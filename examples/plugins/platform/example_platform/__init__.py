"""A platform for a device that fastdeploy_lp does not know: here the CPU, computed in another way."""

from __future__ import annotations

import os


def register() -> str | None:
    """The name of the platform's class, or None where it does not fit; called in every process of the engine.

    A platform for a real device would look for the device or its driver here, without importing Paddle.
    """
    if os.environ.get("EXAMPLE_PLATFORM_ABSENT"):
        return None
    return "example_platform.platform:ExamplePlatform"
