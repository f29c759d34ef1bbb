"""The `args` of an application on Ray Serve; to read them, Ray is not needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastdeploy_lp.engine_args import EngineArgs
from fastdeploy_lp.entrypoints.openai.server_args import ServerArgs
from fastdeploy_lp.entrypoints.options import OptionsParser

ROUTERS = ("prefix", "ray")
# Options of a listener, which is Ray Serve's.
NOT_HERE = ("host", "port", "metrics_port", "root_path", "max_connections", "timeout_graceful_shutdown")


def read_args(args: Mapping[str, Any]) -> tuple[EngineArgs, ServerArgs, str]:
    """Engine, server and router as `args` describe them; raises ValueError naming the option."""
    options = dict(args)
    router = options.pop("request-router", ROUTERS[0])
    if router not in ROUTERS:
        raise ValueError(f"args: request-router: {router!r} is none of {', '.join(ROUTERS)}")
    for key in options:
        name = str(key).replace("-", "_")
        if name in NOT_HERE or name.startswith("ssl_"):
            raise ValueError(
                f"args: {key} is no option here; Ray Serve's proxy listens, and its configuration says where"
            )
    engine_args, server_args = OptionsParser(EngineArgs, ServerArgs).read_mapping("args", options)
    return engine_args, server_args, router
