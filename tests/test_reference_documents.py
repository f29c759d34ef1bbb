"""Every block that the reference documents print is run by a test, with names and ids of this server.

The documents are FastDeploy's on logits processors, and vLLM's on plugins of three kinds and on its V1 processors.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from textwrap import dedent

import pytest
from support.distributions import import_folder, install
from support.server import TESTS, server_environment

from fastdeploy_lp import ModelRegistry
from fastdeploy_lp.plugins import load_general_plugins

EXAMPLES, DOCUMENTS = "entrypoints/openai/test_document_examples.py", "entrypoints/openai/test_documents.py"
HERE = "test_reference_documents.py"

RUN_BY = {
    "plugins by name: a request that chooses one": (DOCUMENTS, "test_the_plugin_multiplies_the_chosen_tokens_logit"),
    "plugins by name: main.py and setup.py of a package": (
        DOCUMENTS,
        "test_every_request_has_a_plugin_instance_of_its_own",
    ),
    "V1 processors: the batch-level class": (DOCUMENTS, "test_each_printed_class_works_alone"),
    "V1 processors: the request-level class and its adapter": (DOCUMENTS, "test_each_printed_class_works_alone"),
    "V1 processors: the class under --logits_processors": (
        DOCUMENTS,
        "test_only_requests_with_the_argument_get_nothing_but_the_target",
    ),
    "V1 processors: the class object in LLM": (DOCUMENTS, "test_each_class_object_works_alone"),
    "V1 processors: the class object in AsyncLLM": (
        "entrypoints/test_async_llm_start.py",
        "test_the_first_requests_start_one_worker_and_shutdown_ends_it_and_the_requests",
    ),
    "V1 processors: an entry point": (DOCUMENTS, "test_entry_points_load_by_themselves_before_the_declared_ones"),
    "V1 processors: a request over REST and the SDK": (
        DOCUMENTS,
        "test_only_requests_with_the_argument_get_nothing_but_the_target",
    ),
    "V1 processors: a request offline": (DOCUMENTS, "test_offline_the_argument_is_in_extra_args"),
    "FastDeploy: the server's command line": (EXAMPLES, "test_sdk_with_a_logit_bias"),
    "FastDeploy: curl with a bias": (EXAMPLES, "test_curl_with_a_logit_bias"),
    "FastDeploy: the SDK with a bias": (EXAMPLES, "test_sdk_with_a_logit_bias"),
    "FastDeploy: both offline programs": (
        "entrypoints/test_llm.py",
        "test_a_script_with_a_class_of_its_own_runs_and_ends_by_itself",
    ),
    "FastDeploy: the class": (
        "logits_processor/test_fastdeploy_compat.py",
        "test_the_documents_sample_runs_under_its_own_import",
    ),
    "FastDeploy: curl with the class": (EXAMPLES, "test_curl_with_your_processor"),
    "FastDeploy: the SDK with the class": (EXAMPLES, "test_sdk_with_your_processor"),
    "plugin guide: groups of entry points": ("test_plugin_docs.py", "test_the_package_is_found_as_it_is_printed"),
    "plugin guide: discovery": (HERE, "test_the_guides_discovery_finds_what_the_server_loads"),
    "plugin guide: register.py": (HERE, "test_the_guides_package_registers_its_model_however_often_it_is_called"),
    "plugin guide: a check of the installation": (HERE, "test_the_guides_commands_find_the_plugin"),
    "plugin guide: a version that is too new": (HERE, "test_a_plugin_for_a_later_release_registers_nothing"),
    "plugin guide: a release as a decorator": ("plugins/test_general.py", "test_one_for_another_release_is_skipped"),
    "plugin guide: settings in the environment": (HERE, "test_the_guides_package_reads_its_environment"),
    "plugin guide: the class": (DOCUMENTS, "test_the_worker_sees_the_servers_environment"),
    "plugin guide: state of a request": (DOCUMENTS, "test_state_of_a_request_comes_from_its_extra_args"),
    "plugin guide: mistakes and messages": (
        "logits_processor/dialects/test_recognition.py",
        "test_mistakes_of_classes_in_vllms_style_say_what_to_write",
    ),
    "plugin system: setup.py and register": (HERE, "test_the_systems_package_registers_its_model"),
    "plugin system: a platform by its name": (
        "examples/test_plugin_packages.py",
        "test_a_platform_of_a_package_of_its_own_serves",
    ),
    "plugin system: an IO processor": (
        "plugins/test_io_processor_source.py",
        "test_every_form_of_an_entry_point_leads_to_the_class",
    ),
    "plugin system: a stat logger": ("plugins/test_stat_logger_source.py", "test_all_that_may_load_are_built_by_name"),
    "all: python -m api_server": ("entrypoints/cli/test_command.py", "test_server_runs_as_a_module"),
    "all: options with underscores": (
        "entrypoints/test_options.py",
        "test_every_option_may_be_spelled_with_underscores",
    ),
    "all: the model first, as in vllm serve": ("entrypoints/test_options.py", "test_the_model_may_come_first"),
}
"""Of every block of code and command line, the test that runs it.

Not here: the guide's patches of vLLM's scheduler and its container image, which print no complete program.
"""


@pytest.mark.parametrize("block", RUN_BY)
def test_the_test_of_a_block_is_there(block: str) -> None:
    file, name = RUN_BY[block]
    assert f"def {name}(" in (TESTS / file).read_text()


REGISTER = """
    import logging
    import os

    from packaging.version import Version

    import fastdeploy_lp

    logger = logging.getLogger(__name__)
    _registered = False


    def register() -> None:
        global _registered
        if _registered:
            return
        if os.environ.get("MY_PLUGIN_ENABLED", "true").lower() != "true":
            return
        if Version(fastdeploy_lp.__version__) < Version("{needed}"):
            logger.warning("this plugin requires a later release")
            return
        logger.info("registering")
        from fastdeploy_lp import ModelRegistry

        if "MyModel" not in ModelRegistry.get_supported_archs():
            ModelRegistry.register_model("MyModel", "my_plugin_models:MyModelForCausalLM")
        _registered = True
"""
POINTS = {"general_plugins": {"my_plugin": "my_plugin_register:register"}}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Path]:
    """On the import path; afterwards registered models are forgotten."""
    with (
        pytest.MonkeyPatch.context() as patch,
        import_folder(tmp_path, only="my_plugin,register_dummy_model") as folder,
    ):
        patch.setattr(ModelRegistry, "_registered", {})
        yield folder


def install_guides_package(folder: Path, needed: str = "0.0.1") -> None:
    modules = {"my_plugin_register": REGISTER.replace("{needed}", needed)}
    install(folder, "my_plugin", POINTS, modules=modules)


def test_the_guides_package_registers_its_model_however_often_it_is_called(site: Path) -> None:
    install_guides_package(site)
    load_general_plugins()
    assert ModelRegistry.get_supported_archs().count("MyModel") == 1
    register = import_module("my_plugin_register").register
    register()
    register()
    assert ModelRegistry.get_supported_archs().count("MyModel") == 1


def test_a_plugin_for_a_later_release_registers_nothing(site: Path, caplog: pytest.LogCaptureFixture) -> None:
    install_guides_package(site, needed="9999")
    load_general_plugins()
    assert "MyModel" not in ModelRegistry.get_supported_archs()
    assert "requires a later release" in caplog.text


def test_the_guides_package_reads_its_environment(site: Path) -> None:
    install_guides_package(site)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MY_PLUGIN_ENABLED", "False")
        load_general_plugins()
    assert "MyModel" not in ModelRegistry.get_supported_archs()


def test_the_guides_discovery_finds_what_the_server_loads(site: Path) -> None:
    install_guides_package(site)
    for point in entry_points(group="fastdeploy_lp.general_plugins"):
        if point.name == "my_plugin":
            point.load()()
    assert "MyModel" in ModelRegistry.get_supported_archs()


def test_the_guides_commands_find_the_plugin(tmp_path: Path) -> None:
    install_guides_package(tmp_path)
    environment = server_environment()
    environment["PYTHONPATH"] = f"{tmp_path}:{environment['PYTHONPATH']}"
    group = "fastdeploy_lp.general_plugins"
    commands = (
        f"from importlib.metadata import entry_points; print(list(entry_points(group='{group}')))",
        "import fastdeploy_lp; print('Plugin loaded!')",
        "from my_plugin_register import register; register()",
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", "\n".join(commands)],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    assert "name='my_plugin', value='my_plugin_register:register'" in done.stdout
    assert done.stdout.endswith("Plugin loaded!\n")


def test_the_systems_package_registers_its_model(site: Path) -> None:
    """Its entry point is written with spaces around the equals sign, and its class with dots."""
    code = """
        def register():
            from fastdeploy_lp import ModelRegistry

            if "MyLlava" not in ModelRegistry.get_supported_archs():
                ModelRegistry.register_model("MyLlava", "dummy_model.my_llava:MyLlava")
    """
    points = {"general_plugins": {"register_dummy_model": "dummy_model:register"}}
    install(site, "add_dummy_model", points, modules={"dummy_model": dedent(code)})
    load_general_plugins()
    assert "MyLlava" in ModelRegistry.get_supported_archs()
