"""The `args` of an application on Ray Serve; reading them does not require Ray."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastdeploy_lp.entrypoints.openai.server_args import ServerArgs
from fastdeploy_lp.entrypoints.options import OptionsParser
from fastdeploy_lp.startup.engine_args import EngineArgs

ROUTERS = ("prefix", "ray")
LISTENER = "Ray Serve's proxy listens, and its configuration says where"
CLIENTS = "clients read from Ray Serve's proxy"
LOG = "a replica logs as Ray Serve's logging_config says"
RECORDS = "replicas of one machine would write to one file"
# Options without effect in a replica; refused, since they would otherwise be ignored silently.
NOT_HERE = {
    **dict.fromkeys(("host", "port", "metrics_port", "root_path", "timeout_graceful_shutdown"), LISTENER),
    **dict.fromkeys(("ssl_certfile", "ssl_keyfile", "ssl_ca_certs", "ssl_cert_reqs"), LISTENER),
    **dict.fromkeys(("max_connections", "max_connections_per_client"), LISTENER),
    **dict.fromkeys(("stream_timeout", "max_unread_tokens"), CLIENTS),
    **dict.fromkeys(("log_level", "log_format"), LOG),
    **dict.fromkeys(("request_log", "request_log_max_bytes"), RECORDS),
}


def read_args(args: Mapping[str, Any]) -> tuple[EngineArgs, ServerArgs, str]:
    """Returns the engine options, server options and router name in `args`; raises ValueError naming the option."""
    options = dict(args)
    router = options.pop("request-router", ROUTERS[0])
    if router not in ROUTERS:
        raise ValueError(f"args: request-router: {router!r} is none of {', '.join(ROUTERS)}")
    for key in options:
        reason = NOT_HERE.get(str(key).replace("-", "_"))
        if reason is not None:
            raise ValueError(f"args: {key} is no option here; {reason}")
    engine_args, server_args = OptionsParser(EngineArgs, ServerArgs).read_mapping("args", options)
    return engine_args, server_args, router
