"""What `fastdeploy-lp plugins` says of installed plugins."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.distributions import import_folder, install
from support.stand_ins import vllm_stand_ins

from fastdeploy_lp.entrypoints.cli.plugins import main
from fastdeploy_lp.plugins import PluginGroup

MODULE = """
    from fastdeploy_lp.logits_processor import LogitsProcessor
    from fastdeploy_lp.platforms import CpuPlatform

    def nothing(): ...

    def raises():
        raise RuntimeError("no way")

    class Device(CpuPlatform):
        name = "device"

    def device():
        return "offered:Device"

    class Processor(LogitsProcessor):
        def __init__(self, fd_config): ...
        def update_state(self, share_inputs): ...
        def apply(self, logits):
            return logits
"""

# Group, what the entry point names, and what becomes of it.
CASES: list[tuple[str, str, str, str]] = [
    ("general_plugins", "nothing", "loaded", "its function was called"),
    ("general_plugins", "raises", "failed", "offered:raises raised: RuntimeError: no way"),
    ("general_plugins", "missing", "failed", "module 'offered' has no attribute 'missing'"),
    ("platform_plugins", "device", "loaded", "claims this machine as device"),
    ("platform_plugins", "nothing", "loaded", "does not claim this machine"),
    ("platform_plugins", "raises", "failed", "offered:raises raised: RuntimeError: no way"),
    ("logits_processors", "Processor", "loaded", "native logits processor"),
    ("logits_processors", "Device", "failed", "must be a subclass of LogitsProcessor"),
]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Path]:
    with import_folder(tmp_path, only="mine") as folder:
        install(folder, "modules", {}, modules={"offered": MODULE})
        yield folder


def rows(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, list[dict[str, Any]]]:
    """The status, and what is said of the test's own distribution."""
    status = main(["--json", *options])
    listed = json.loads(capsys.readouterr().out)["plugins"]
    return status, [row for row in listed if row["distribution"] == "tested"]


@pytest.mark.parametrize(("group", "attribute", "state", "detail"), CASES)
def test_what_becomes_of_a_plugin(
    site: Path, capsys: pytest.CaptureFixture[str], group: str, attribute: str, state: str, detail: str
) -> None:
    install(site, "tested", {group: {"mine": f"offered:{attribute}"}}, requires=["fastdeploy-lp>=0.0.1"])
    status, (row,) = rows(capsys)
    assert (row["state"], status) == (state, int(state == "failed"))
    assert detail in row["detail"]
    assert row["group"] == f"fastdeploy_lp.{group}"
    assert (row["version"], row["requires"]) == ("1.0", ["fastdeploy-lp>=0.0.1"])
    main([])
    printed = capsys.readouterr().out
    assert f"fastdeploy_lp.{group}:\n" in printed
    assert f"  mine  {state}  tested 1.0, offered:{attribute}\n" in printed
    assert f"    {row['detail']}\n" in printed


def test_one_for_vllm_loads_with_the_option_alone(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = "from vllm.v1.sample.logits_processor import MinPLogitsProcessor"
    points = {"vllm.logits_processors": {"mine": "for_vllm:MinPLogitsProcessor"}}
    install(site, "tested", points, modules={"for_vllm": module})
    status, (row,) = rows(capsys)
    assert (row["group"], row["state"], status) == ("vllm.logits_processors", "filtered", 0)
    assert "--vllm-compat" in row["detail"]
    with vllm_stand_ins():
        status, (row,) = rows(capsys, "--vllm-compat")
    assert (row["state"], row["detail"], status) == ("loaded", "torch logits processor", 0)


OWN_GROUPS = [group for group in PluginGroup if group is not PluginGroup.VLLM_LOGITS_PROCESSOR]


@pytest.mark.parametrize("group", OWN_GROUPS)
def test_one_for_another_release_is_incompatible(
    site: Path, capsys: pytest.CaptureFixture[str], group: PluginGroup
) -> None:
    install(site, "tested", {group.value: {"mine": "offered:nothing"}}, requires=["fastdeploy-lp>=99"])
    status, (row,) = rows(capsys)
    assert (row["state"], status) == ("incompatible", 1)
    assert row["detail"].startswith("needs fastdeploy-lp>=99, this is ")


@pytest.mark.parametrize("group", OWN_GROUPS)
def test_one_that_may_not_load_is_filtered(
    site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, group: PluginGroup
) -> None:
    install(site, "tested", {group.value: {"mine": "offered:raises"}}, requires=["fastdeploy-lp>=99"])
    monkeypatch.setenv("FASTDEPLOY_LP_PLUGINS", "others")
    status, (row,) = rows(capsys)
    assert (row["state"], status) == ("filtered", 0)
    assert row["detail"] == "FASTDEPLOY_LP_PLUGINS does not name it"
    main([])
    assert "FASTDEPLOY_LP_PLUGINS names others, but no plugin of that name is installed" in capsys.readouterr().out


def test_the_filter_is_shown(site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTDEPLOY_LP_PLUGINS", "b, a,")
    main(["--json"])
    assert json.loads(capsys.readouterr().out)["filter"] == ["a", "b"]
