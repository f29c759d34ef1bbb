"""What `configs/` holds for Ray Serve, Kubernetes and Docker, held against schemas and the package's options."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from fastdeploy_lp.entrypoints.openai.server_args import ServerArgs
from fastdeploy_lp.entrypoints.options import OptionsParser
from fastdeploy_lp.entrypoints.ray_args import read_args
from fastdeploy_lp.startup.engine_args import EngineArgs

CONFIGS = Path(__file__).parents[1] / "configs"
KUBERNETES = ("1.27", "1.37")
DOCUMENTS = [each for each in yaml.safe_load_all((CONFIGS / "k8s" / "deployment.yaml").read_text()) if each]
BY_KIND = {each["kind"]: each for each in DOCUMENTS}
RAY_SERVICE = yaml.safe_load((CONFIGS / "k8s" / "rayservice.yaml").read_text())
DOCKERFILES = sorted((CONFIGS / "docker").iterdir())
# Of KubeRay's RayService, whose schema no package has: what is used here, and what each is.
RAY_SERVICE_FIELDS = {"serveConfigV2": str, "rayClusterConfig": dict}
CLUSTER_FIELDS = {
    "rayVersion": str,
    "enableInTreeAutoscaling": bool,
    "headGroupSpec": dict,
    "workerGroupSpecs": list,
}
GROUP_FIELDS = {
    "groupName": str,
    "replicas": int,
    "minReplicas": int,
    "maxReplicas": int,
    "rayStartParams": dict,
    "template": dict,
}


def options_of(words: list[str]) -> tuple[EngineArgs, ServerArgs]:
    engine, server = OptionsParser(EngineArgs, ServerArgs).parse_options(words)
    return engine, server


def applications(text: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(text)["applications"]
    return found


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("kind", sorted(BY_KIND))
def test_manifests_fit_the_schemas_of_kubernetes(kind: str, version: str) -> None:
    assert kubernetes_validate.validate(BY_KIND[kind], version, strict=True)


def test_the_schemas_refuse_what_is_wrong() -> None:
    """The check itself: a field that is misspelt is found."""
    spoilt = yaml.safe_load(yaml.safe_dump(BY_KIND["Deployment"]).replace("readinessProbe", "readyProbe"))
    with pytest.raises(kubernetes_validate.ValidationError, match="readyProbe"):
        kubernetes_validate.validate(spoilt, KUBERNETES[-1], strict=True)


def test_the_pods_of_a_ray_service_fit_the_schemas_of_kubernetes() -> None:
    cluster = RAY_SERVICE["spec"]["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        template = {"metadata": {}, **group["template"]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": template["spec"]}
        assert kubernetes_validate.validate(pod, KUBERNETES[-1], strict=True)


def test_a_ray_service_has_fields_that_kuberay_knows() -> None:
    """Names and kinds only: not KubeRay's own schema, which no package carries."""
    assert (RAY_SERVICE["apiVersion"], RAY_SERVICE["kind"]) == ("ray.io/v1", "RayService")
    cluster = RAY_SERVICE["spec"]["rayClusterConfig"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    for part, fields in [
        (RAY_SERVICE["spec"], RAY_SERVICE_FIELDS),
        (cluster, CLUSTER_FIELDS),
        *((group, GROUP_FIELDS) for group in groups),
    ]:
        for name, value in part.items():
            assert isinstance(value, fields[name]), name
    for group in groups:
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
    for group in cluster["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]


@pytest.mark.parametrize(
    "text",
    [(CONFIGS / "ray-serve.yaml").read_text(), RAY_SERVICE["spec"]["serveConfigV2"]],
    ids=["ray-serve.yaml", "rayservice.yaml"],
)
def test_what_ray_serve_is_told(text: str) -> None:
    (application,) = applications(text)
    assert application["import_path"] == "fastdeploy_lp.entrypoints.ray_serve:build_app"
    engine_args, _, router = read_args(application["args"])
    assert router == "prefix"
    deployments = {each["name"]: each for each in application["deployments"]}
    assert sorted(deployments) == ["Engine", "Ingress"]
    engine = deployments["Engine"]
    assert engine["max_ongoing_requests"] >= engine_args.max_num_seqs
    scaling = engine["autoscaling_config"]
    assert scaling["target_ongoing_requests"] <= engine["max_ongoing_requests"]
    assert scaling["min_replicas"] < scaling["max_replicas"]
    # An update of the one ends streams that pass the other no earlier.
    assert len({each["graceful_shutdown_timeout_s"] for each in deployments.values()}) == 1


def test_a_worker_of_the_ray_cluster_has_room_for_a_replica_and_the_ingress() -> None:
    (application,) = applications(RAY_SERVICE["spec"]["serveConfigV2"])
    needed = sum(each["ray_actor_options"]["num_cpus"] for each in application["deployments"])
    for group in RAY_SERVICE["spec"]["rayClusterConfig"]["workerGroupSpecs"]:
        (container,) = group["template"]["spec"]["containers"]
        assert float(container["resources"]["limits"]["cpu"]) >= needed


def test_the_deployment_starts_a_server_that_drains_in_time() -> None:
    pod = BY_KIND["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    engine_args, server_args = options_of(container["args"])
    assert engine_args.logits_processors == ["LogitBiasLogitsProcessor"]
    pause = int(container["lifecycle"]["preStop"]["exec"]["command"][-1])
    assert pod["terminationGracePeriodSeconds"] > server_args.timeout_graceful_shutdown + pause
    cores = container["resources"]["limits"]["cpu"]
    assert {each["value"] for each in container["env"]} == {cores}
    assert [container[name]["httpGet"]["path"] for name in ("startupProbe", "readinessProbe", "livenessProbe")] == [
        "/health/ready",
        "/health/ready",
        "/health/live",
    ]


def test_labels_find_the_pods() -> None:
    labels = BY_KIND["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert BY_KIND["Service"]["spec"]["selector"] == labels
    assert BY_KIND["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert (
        BY_KIND["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"]
        == BY_KIND["Deployment"]["metadata"]["name"]
    )


@pytest.mark.parametrize("path", DOCKERFILES, ids=[each.name for each in DOCKERFILES])
def test_dockerfiles_copy_what_is_there_and_start_what_exists(path: Path) -> None:
    """Not a build, which takes a network and a daemon."""
    text = path.read_text().replace("\\\n", " ")
    for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (CONFIGS.parent / source).exists(), source
    lists = {
        name: yaml.safe_load(value) for name, value in re.findall(r"^(ENTRYPOINT|CMD) (\[.*\])$", text, re.MULTILINE)
    }
    program, subcommand, *words = lists["ENTRYPOINT"]
    assert (program, subcommand) == ("fastdeploy-lp", "serve")
    engine_args, server_args = options_of([*words, *lists.get("CMD", ["--model", "m"])])
    assert (server_args.host, server_args.port) == ("0.0.0.0", 8000)
    assert engine_args.model
    assert re.search(r"^USER 10001$", text, re.MULTILINE)
    for line in re.findall(r"^RUN (.+)$", text, re.MULTILINE):
        assert shlex.split(line)


def test_only_options_of_the_engine_are_taken_as_arguments() -> None:
    for option in ("port", "ssl-certfile", "stream-timeout", "max-unread-tokens", "log-level", "request-log"):
        with pytest.raises(ValueError, match=f"args: {option} is no option here; "):
            read_args({"model": "m", option: 1})
    with pytest.raises(ValueError, match=r"args: colour is no option$"):
        read_args({"model": "m", "colour": "red"})
    with pytest.raises(ValueError, match="args: max-num-seqs: 'many' has the wrong type"):
        read_args({"model": "m", "max-num-seqs": "many"})
    with pytest.raises(ValueError, match="request-router: 'luck' is none of prefix, ray"):
        read_args({"model": "m", "request-router": "luck"})
    with pytest.raises(ValueError, match="--model is needed"):
        read_args({})
