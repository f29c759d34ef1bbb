"""docs/plugins.md against the code: its package is installed, its tables are compared, its mistakes are made."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Callable, Iterator
from configparser import ConfigParser
from pathlib import Path

import pytest
from support.distributions import import_folder, install
from support.server import REPOSITORY
from support.tiny import tiny_fd_config

from fastdeploy_lp import ModelRegistry
from fastdeploy_lp.entrypoints.cli.command import main
from fastdeploy_lp.logits_processor import LogitsProcessorChain, load_processors
from fastdeploy_lp.model_executor.models.registry import METHODS, model_class
from fastdeploy_lp.platforms import CpuPlatform, Platform, find_platform
from fastdeploy_lp.plugins import PluginGroup, allowed_plugins, call, load, load_general_plugins
from fastdeploy_lp.plugins.io_processor import IOProcessor, find_io_processor
from fastdeploy_lp.plugins.stat_logger import StatLoggerBase, installed_stat_loggers
from fastdeploy_lp.startup.settled_config import settled_by
from fastdeploy_lp.stats import FinishedRequestStats, IterationStats, SchedulerStats
from fastdeploy_lp.worker.engine_core import EngineCore
from fastdeploy_lp.worker.worker_base import WorkerBase

DOCUMENT = (REPOSITORY / "docs" / "plugins.md").read_text()
GENERAL = PluginGroup.GENERAL


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Path]:
    """On the import path; afterwards registered models are forgotten."""
    with pytest.MonkeyPatch.context() as patch, import_folder(tmp_path, only="mine,my_models") as folder:
        patch.setattr(ModelRegistry, "_registered", {})
        yield folder


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", DOCUMENT, re.DOTALL)
    return str(found)


def table_below(heading: str) -> list[list[str]]:
    """The cells of the first table of a section, without its head."""
    section = DOCUMENT.partition(f"# {heading}\n")[2].partition("\n#")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]*)`", cell)


def test_no_block_of_code_is_left_out_of_these_tests() -> None:
    assert DOCUMENT.count("```") == 2 * 3


# The package


def test_the_package_is_found_as_it_is_printed(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # As much of TOML as the block has is what this reads, with values in JSON.
    file = ConfigParser()
    file.read_string(block("toml"))
    project = {key: json.loads(value) for key, value in file["project"].items()}
    (module,) = json.loads(file["tool.setuptools"]["packages"])
    assert f"# file: {module}/__init__.py\n" in block("python")
    points = {
        key: json.loads(value) for key, value in file['project.entry-points."fastdeploy_lp.general_plugins"'].items()
    }
    install(
        site,
        project["name"],
        {"general_plugins": points},
        version=project["version"],
        requires=project["dependencies"],
        modules={module: block("python")},
    )
    main(["plugins"])
    assert block("text") in capsys.readouterr().out
    assert "MyForCausalLM" in ModelRegistry.get_supported_archs()


# Tables


def test_every_group_is_there() -> None:
    assert sorted(code(row[0])[0] for row in table_below("Plugins")) == sorted(group.value for group in PluginGroup)


def test_members_of_platforms_workers_and_models() -> None:
    members = [re.sub(r"\(.*", "", name) for row in table_below("Platforms") for name in code(row[0])]
    for name in members:
        assert hasattr(Platform, name) or name in Platform.__annotations__, name
    documented = {name for name in vars(Platform) if not name.startswith("_")} | set(Platform.__annotations__)
    assert documented - set(members) <= {"is_supported"}
    models = [re.sub(r"\(.*", "", code(row[0])[0]) for row in table_below("General plugins: models")]
    assert tuple(models) == METHODS
    calls = [re.sub(r"\(.*", "", code(row[0])[0]) for row in table_below("Workers")]
    for name in calls:
        assert hasattr(WorkerBase, name), name


def test_methods_of_io_processors_and_stat_loggers() -> None:
    for heading, base in (("IO processors", IOProcessor), ("Stat loggers", StatLoggerBase)):
        rows = DOCUMENT.partition(f"## {heading}\n")[2].partition("| method |")[2].partition("\n\n")[0].splitlines()
        methods = {re.sub(r"\(.*", "", code(row)[0]) for row in rows[2:]}
        public = {name for name in vars(base) if not name.startswith("_") and callable(getattr(base, name))}
        assert public - {f"{name}_async" for name in methods} == methods


@pytest.mark.parametrize("stats", [SchedulerStats, IterationStats, FinishedRequestStats])
def test_every_field_of_the_statistics_is_there(stats: type) -> None:
    rows = DOCUMENT.partition(f"| `{stats.__name__}` |")[2].partition("\n\n")[0].splitlines()[2:]
    fields = {*stats.__dataclass_fields__, *(name for name, each in vars(stats).items() if isinstance(each, property))}
    assert {name for row in rows for name in code(row.split("|")[1])} == fields


# Mistakes

MODULE = """
    from fastdeploy_lp import IOProcessor, ModelRegistry, StatLoggerBase
    from fastdeploy_lp.openai.logits_processor import LogitsProcessor
    from fastdeploy_lp.platforms import CpuPlatform, Platform

    def register():
        raise RuntimeError("no licence")

    class NoCache:
        def forward(self, chunks): ...
        def compute_logits(self, hidden): ...

    class Lazy(CpuPlatform):
        name = "lazy"
        def check_and_update_config(self, fd_config):
            self.seen = fd_config

    class Unfinished(Platform):
        name = "unfinished"

    class NoPlatform: ...

    def itself():
        return Lazy

    def no_platform():
        return "mine:NoPlatform"

    def unfinished():
        return "mine:Unfinished"

    class NoProcessor: ...

    class NoUpdate(LogitsProcessor):
        def __init__(self, fd_config): ...
        def apply(self, logits):
            return logits

    class Called(LogitsProcessor):
        def __init__(self, fd_config): ...
        def update_state(self, share_inputs): ...
        def __call__(self, logits):
            return logits

    class HalfAnIOProcessor(IOProcessor):
        def parse_request(self, data):
            return data

    class HalfALogger(StatLoggerBase):
        def record(self, scheduler_stats, iteration_stats, engine_idx=0): ...

    ABSENT = "mine:Absent"

    class Built(LogitsProcessor):
        def __init__(self): ...
        def update_state(self, share_inputs): ...
        def apply(self, logits):
            return logits
"""


def general(value: str, *requires: str, twice: bool = False) -> Callable[[Path], str]:
    """What becomes of a general plugin."""

    def make(site: Path) -> str:
        for distribution in ("first", "second") if twice else ("first",):
            install(site, distribution, {"general_plugins": {"mine": value}}, requires=requires)
        return load_general_plugins()[-1].reason

    return make


def raising(attempt: Callable[[], object]) -> str:
    with pytest.raises(ValueError) as caught:
        attempt()
    return str(caught.value)


def registering(model: object) -> Callable[[Path], str]:
    """What is said of a registered model, at once or when a checkpoint asks for it."""

    def attempt() -> None:
        ModelRegistry.register_model("MineForCausalLM", model)  # type: ignore[arg-type]
        model_class({"architectures": ["MineForCausalLM"]})

    return lambda _: raising(attempt)


def platform(function: str) -> Callable[[Path], str]:
    def make(site: Path) -> str:
        install(site, "first", {"platform_plugins": {"mine": f"mine:{function}"}})
        return raising(lambda: find_platform({}))

    return make


def processor(name: str) -> Callable[[Path], str]:
    def make(site: Path) -> str:
        install(site, "first", {"logits_processors": {"mine": f"mine:{name}"}})
        return raising(lambda: load_processors([]))

    return make


def io_processor(value: str, name: str = "mine") -> Callable[[Path], str]:
    def make(site: Path) -> str:
        install(site, "first", {"io_processor_plugins": {"mine": f"mine:{value}"}})
        return raising(lambda: find_io_processor(name))

    return make


def stat_logger(value: str) -> Callable[[Path], str]:
    def make(site: Path) -> str:
        install(site, "first", {"stat_logger_plugins": {"mine": f"mine:{value}"}})
        return raising(installed_stat_loggers)

    return make


def module_as_function(site: Path) -> str:
    install(site, "first", {"platform_plugins": {"mine": "mine"}})
    (plugin,) = allowed_plugins(PluginGroup.PLATFORM)
    return raising(lambda: call(load(plugin)))


def lazy_platform(_: Path) -> str:
    platform: CpuPlatform = __import__("mine").Lazy()
    return raising(lambda: settled_by(platform, tiny_fd_config()))


def no_worker(_: Path) -> str:
    config = tiny_fd_config()
    device = dataclasses.replace(config.device_config, worker_class="mine:NoPlatform")
    config = dataclasses.replace(config, device_config=device)
    return raising(lambda: EngineCore(config, LogitsProcessorChain([], config)))


MISTAKES: dict[str, Callable[[Path], str]] = {
    "the entry point's module does not import": general("my_modles:register"),
    "its attribute is misspelt": general("mine:regster"),
    "a module where a function is asked for": module_as_function,
    "the function raises": general("mine:register"),
    "the package is for another release": general("mine:register", "fastdeploy-lp>=99"),
    "two packages with one name": general("mine:register", twice=True),
    "a model's name without a colon or dot": registering("MyForCausalLM"),
    "a model's name that leads nowhere": registering("mine:MyForCausalLM"),
    "a model that lacks a method": registering("mine:NoCache"),
    "an architecture that nobody registered": lambda _: raising(lambda: model_class({"architectures": ["X"]})),
    "a platform function that returns the class": platform("itself"),
    "a class that is no platform": platform("no_platform"),
    "a platform that lacks a method": platform("unfinished"),
    "`check_and_update_config` returns nothing": lazy_platform,
    "a worker that is no worker": no_worker,
    "a processor that is no `LogitsProcessor`": processor("NoProcessor"),
    "a processor without `update_state`": processor("NoUpdate"),
    "a processor with `__call__` in place of `apply`": processor("Called"),
    "a processor with another constructor": processor("Built"),
    "an IO processor's name that leads nowhere": io_processor("ABSENT"),
    "an IO processor that derives from nothing": io_processor("NoProcessor"),
    "an IO processor that lacks a method": io_processor("HalfAnIOProcessor"),
    "a misspelt `--io-processor-plugin`": io_processor("HalfAnIOProcessor", "rankin"),
    "a function in place of a stat logger's class": stat_logger("itself"),
    "a stat logger that lacks a method": stat_logger("HalfALogger"),
}


def printed_mistakes() -> dict[str, str]:
    return {mistake: message.strip("`") for mistake, message in table_below("What goes wrong")}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_as_the_table_says(site: Path, mistake: str) -> None:
    install(site, "modules", {}, modules={"mine": MODULE})
    message = MISTAKES[mistake](site)
    assert printed_mistakes()[mistake] in message
    assert "\n" not in message


def test_a_plugin_that_is_left_out_is_listed_with_the_reason(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(site, "first", {"general_plugins": {"mine": "mine:register"}}, modules={"mine": MODULE})
    monkeypatch.setenv("FASTDEPLOY_LP_PLUGINS", "")
    main(["plugins"])
    assert "mine  filtered  first 1.0, mine:register" in (shown := capsys.readouterr().out)
    assert printed_mistakes()["a plugin that does not load at all"] in shown
    assert "mine" not in sys.modules


def test_every_mistake_of_the_table_is_made() -> None:
    assert [*MISTAKES, "a plugin that does not load at all"] == list(printed_mistakes())
