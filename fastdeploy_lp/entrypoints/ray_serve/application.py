"""The application that `serve run` and `serve deploy` build from a configuration's `args`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray import serve
from ray.serve.config import RequestRouterConfig

from fastdeploy_lp.entrypoints.ray_args import read_args
from fastdeploy_lp.entrypoints.ray_serve.ingress import Ingress
from fastdeploy_lp.entrypoints.ray_serve.prefix_router import PrefixRouter
from fastdeploy_lp.entrypoints.ray_serve.replica import EngineReplica

ENGINE, INGRESS = "Engine", "Ingress"
# Longer than the longest answer, so that an update drops none.
GRACEFUL_SECONDS = 600.0
# Requests that may wait in a replica's queue, per slot.
WAITING_PER_SLOT = 2
INGRESS_REQUESTS = 1000


def build_app(args: Mapping[str, Any]) -> serve.Application:
    """Builds an ingress and its replicas; `args`: command-line options, and `request-router` (prefix or ray).

    The configuration's `deployments`, named Ingress and Engine, set the numbers of replicas, resources and autoscaling.
    Raises ValueError naming the invalid option.
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
