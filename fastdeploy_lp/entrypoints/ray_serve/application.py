"""The application that `serve run` and `serve deploy` build from a configuration's `args`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray import serve
from ray.serve.config import RequestRouterConfig

from fastdeploy_lp.config import EngineArgs
from fastdeploy_lp.entrypoints.openai.server_args import ServerArgs
from fastdeploy_lp.entrypoints.options import OptionsParser
from fastdeploy_lp.entrypoints.ray_serve.ingress import Ingress
from fastdeploy_lp.entrypoints.ray_serve.prefix_router import PrefixRouter
from fastdeploy_lp.entrypoints.ray_serve.replica import EngineReplica

ENGINE, INGRESS = "Engine", "Ingress"
ROUTERS = ("prefix", "ray")
# Options of a listener, which is Ray Serve's.
NOT_HERE = ("host", "port", "metrics_port", "root_path", "max_connections", "timeout_graceful_shutdown")
# Longer than the longest answer, so that an update drops none.
GRACEFUL_SECONDS = 600.0
# Requests that wait in a replica's own queue, for each slot.
WAITING_PER_SLOT = 2
INGRESS_REQUESTS = 1000


def build_app(args: Mapping[str, Any]) -> serve.Application:
    """An ingress and its replicas; `args` are options of the command line, and `request-router`: prefix or ray.

    Numbers of replicas, resources and autoscaling are the configuration's `deployments`, named Ingress and Engine.
    Raises ValueError naming the option that cannot be used.
    """
    engine_args, server_args, router = read_args(args)
    slots = engine_args.max_num_seqs * engine_args.data_parallel_size
    keywords: dict[str, Any] = {}
    if router == "prefix":
        keywords["request_router_config"] = RequestRouterConfig(
            request_router_class=PrefixRouter, request_router_kwargs={"slots": slots}
        )
    engine = serve.deployment(
        EngineReplica,
        name=ENGINE,
        max_ongoing_requests=slots * (1 + WAITING_PER_SLOT),
        graceful_shutdown_timeout_s=GRACEFUL_SECONDS,
        **keywords,
    )
    ingress = serve.deployment(
        serve.ingress()(Ingress),
        name=INGRESS,
        max_ongoing_requests=INGRESS_REQUESTS,
        graceful_shutdown_timeout_s=GRACEFUL_SECONDS,
    )
    return ingress.bind(engine.bind(engine_args, server_args), server_args.max_body_size)


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
