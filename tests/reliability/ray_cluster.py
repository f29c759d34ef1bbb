"""A Ray cluster in this machine's processes with `configs/ray-serve.yaml` on it, for tests and measurements."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from types import TracebackType
from typing import Any

import ray
import yaml
from ray import serve
from ray.serve.context import _get_global_client
from ray.serve.schema import ServeDeploySchema
from support.server import REPOSITORY, TESTS, free_port, wait_until

CONFIG = REPOSITORY / "configs" / "ray-serve.yaml"
APPLICATION = "fastdeploy_lp"
# What Ray may hand out; the machine's real cores are shared by all.
LOGICAL_CPUS = 16
DEPLOY_SECONDS = 240.0


class RayCluster:
    """`with RayCluster() as cluster:` one node, no dashboard; the operator's file with some options changed."""

    def __init__(self) -> None:
        self._port = free_port()

    @property
    def url(self) -> str:
        """Where the API is, without `/v1`."""
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> RayCluster:
        path = os.pathsep.join([str(REPOSITORY), str(TESTS)])
        ray.init(
            num_cpus=LOGICAL_CPUS,
            include_dashboard=False,
            log_to_driver=False,
            runtime_env={"env_vars": {"PYTHONPATH": path}},
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        serve.shutdown()
        ray.shutdown()

    def deploy(self, args: dict[str, Any], num_replicas: int = 2) -> None:
        """What `serve run` does with the file: a first deployment, or an update of the one that runs, to its end."""
        config = copy.deepcopy(yaml.safe_load(CONFIG.read_text()))
        config["http_options"]["port"] = self._port
        (application,) = config["applications"]
        application["args"] = args
        (engine,) = [each for each in application["deployments"] if each["name"] == "Engine"]
        del engine["autoscaling_config"]
        engine |= {"num_replicas": num_replicas, "health_check_period_s": 1}
        schema = ServeDeploySchema.model_validate(config)
        serve.start(http_options=schema.http_options.model_dump())
        _get_global_client().deploy_apps(schema)
        wait_until(lambda: self._is_running(args, num_replicas), DEPLOY_SECONDS, lambda: str(serve.status()))

    def replica_pids(self) -> list[int]:
        """The processes of the replicas that have an engine."""
        title = f"ray::ServeReplica:{APPLICATION}:Engine"
        return sorted(int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit() and _is(each, title))

    def _is_running(self, args: dict[str, Any], num_replicas: int) -> bool:
        status = serve.status().applications[APPLICATION]
        if status.status == "DEPLOY_FAILED":
            raise RuntimeError(status.message)
        engine = status.deployments.get("Engine")
        return status.status == "RUNNING" and engine is not None and engine.replica_states == {"RUNNING": num_replicas}


def _is(folder: Path, title: str) -> bool:
    try:
        return (folder / "cmdline").read_bytes().decode(errors="replace").startswith(title)
    except OSError:
        return False
