"""Options from the command line and a YAML file, in the server's own parser."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import get_type_hints

import pytest

from fastdeploy_lp.config.option_values import without_none
from fastdeploy_lp.entrypoints.openai.server_args import ServerArgs
from fastdeploy_lp.entrypoints.options import OptionsParser
from fastdeploy_lp.startup.engine_args import EngineArgs

REPOSITORY = Path(__file__).parents[2]


def parse(*argv: str) -> tuple[EngineArgs, ServerArgs]:
    """What the server gets."""
    engine_args, server_args = OptionsParser(EngineArgs, ServerArgs, prog="serve").parse_options(argv)
    return engine_args, server_args


def config(folder: Path, text: str) -> str:
    """A YAML file's path."""
    path = folder / "options.yaml"
    path.write_text(text)
    return str(path)


def complaint(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line about options that cannot be used."""
    with pytest.raises(SystemExit) as ended:
        parse(*argv)
    assert ended.value.code == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    return line


def test_defaults() -> None:
    engine_args, server_args = parse("--model", "m")
    assert engine_args == EngineArgs(model="m")
    assert server_args == ServerArgs()


def test_every_field_is_an_option() -> None:
    engine_args, server_args = parse(
        *("--model", "m", "--served-model-name", "s", "--logits-processors", "A", "b.c:D", "--max-model-len", "100"),
        *("--max-num-seqs", "3", "--block-size", "8", "--engine-worker-queue-port", "8182"),
        *("--max-num-batched-tokens", "64", "--max-waiting-requests", "0", "--no-enable-prefix-caching"),
        *(
            "--num-gpu-blocks-override",
            "99",
            "--gpu-memory-utilization",
            "0.5",
            "--host",
            "0.0.0.0",
            "--port",
            "8180",
            "--metrics-port",
            "8181",
        ),
        *("--timeout-graceful-shutdown", "0"),
    )
    assert engine_args == EngineArgs(
        model="m",
        served_model_name=["s"],
        logits_processors=["A", "b.c:D"],
        max_model_len=100,
        max_num_seqs=3,
        block_size=8,
        max_num_batched_tokens=64,
        max_waiting_requests=0,
        enable_prefix_caching=False,
        num_gpu_blocks_override=99,
        gpu_memory_utilization=0.5,
        engine_worker_queue_port=8182,
    )
    assert server_args == ServerArgs("0.0.0.0", 8180, 8181, 0)


def test_yaml_has_the_same_options(tmp_path: Path) -> None:
    text = "model: m\nlogits-processors:\n  - A\n  - b.c:D\nmax-num-seqs: 3\nport: 8180\n"
    engine_args, server_args = parse("--config", config(tmp_path, text))
    assert engine_args == EngineArgs(model="m", logits_processors=["A", "b.c:D"], max_num_seqs=3)
    assert server_args == ServerArgs(port=8180)


def test_yaml_keys_may_have_underscores(tmp_path: Path) -> None:
    engine_args, _ = parse("--config", config(tmp_path, "model: m\nmax_num_seqs: 3\n"))
    assert engine_args.max_num_seqs == 3


def test_command_line_wins_over_yaml(tmp_path: Path) -> None:
    path = config(tmp_path, "model: m\nlogits-processors: [A]\nmax-num-seqs: 3\nblock-size: 8\n")
    for argv in (
        ["--config", path, "--max-num-seqs", "5", "--logits-processors", "B"],
        ["--max-num-seqs", "5", "--logits-processors", "B", "--config", path],
    ):
        engine_args, _ = parse(*argv)
        assert (engine_args.max_num_seqs, engine_args.logits_processors) == (5, ["B"])
        assert (engine_args.model, engine_args.block_size) == ("m", 8)


def test_command_line_wins_even_with_the_default_value(tmp_path: Path) -> None:
    path = config(tmp_path, "model: m\nmax-num-seqs: 3\n")
    default = EngineArgs(model="m").max_num_seqs
    assert parse("--config", path, "--max-num-seqs", str(default))[0].max_num_seqs == default


# Ray Serve's file holds options within its own: tests/test_deployment_files.py.
CONFIGS = sorted(set((REPOSITORY / "configs").glob("*.yaml")) - {REPOSITORY / "configs" / "ray-serve.yaml"})


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: str(path.name))
def test_shipped_configs_are_valid(path: Path) -> None:
    engine_args, _ = parse("--config", str(path))
    assert engine_args.model


def test_help_lists_every_option_and_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse("--help")
    assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for option in ("--model", "--logits-processors", "--config", "--metrics-port", "--engine-worker-queue-port"):
        assert f"{option} " in text
    for default in (
        "32",
        "16; on a GPU 64",
        "512; on a GPU 4096",
        "1024",
        "0.9",
        "True",
        "8180",
        "127.0.0.1",
        "30",
        "the --model value",
        "the API's own port",
    ):
        assert f"(default: {default})" in text
    assert "[]" not in text


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        ([], ["--model is needed", "smollm2-135m"]),
        (["--model", "m", "--port", "0"], ["port: 0", "1 to 65535"]),
        (["--model", "m", "--metrics-port", "65536"], ["metrics_port: 65536"]),
        (["--model", "m", "--cache-queue-port", "-1"], ["cache_queue_port: -1"]),
        (["--model", "m", "--port", "http"], ["--port", "'http'"]),
        (["--model", "m", "--max-num-seqs", "-1"], ["max_num_seqs: -1"]),
        (["--model", "m", "--block-size", "0"], ["block_size: 0"]),
        (["--model", "m", "--max-model-len", "0"], ["max_model_len: 0"]),
        (["--model", "m", "--max-num-batched-tokens", "0"], ["max_num_batched_tokens: 0", "at least 1"]),
        (["--model", "m", "--max-waiting-requests", "-1"], ["max_waiting_requests: -1", "at least 0"]),
        (["--model", "m", "--num-gpu-blocks-override", "0"], ["num_gpu_blocks_override: 0", "at least 1"]),
        (["--model", "m", "--gpu-memory-utilization", "0"], ["gpu_memory_utilization: 0.0", "above 0"]),
        (["--model", "m", "--pooling-type", "max"], ["--pooling-type", "'max'", "mean", "last"]),
        (["--model", "m", "--gpu-memory-utilization", "1.1"], ["gpu_memory_utilization: 1.1", "at most 1"]),
        (["--model", "m", "--gpu-memory-utilization", "nan"], ["gpu_memory_utilization: nan"]),
        (
            ["--model", "m", "--cache-queue-port", "8183", "--no-enable-prefix-caching"],
            ["cache_queue_port", "enable_prefix_caching"],
        ),
        (["--model", "m", "--timeout-graceful-shutdown", "-1"], ["timeout_graceful_shutdown"]),
        (["--model"], ["--model"]),
        (["--model", "m", "--logits-processors"], ["--logits-processors"]),
        (["--model", "m", "--modle", "n"], ["--modle"]),
        (["--model", "m", "stray"], ["stray"]),
    ],
)
def test_bad_option_is_told(capsys: pytest.CaptureFixture[str], argv: list[str], parts: list[str]) -> None:
    line = complaint(capsys, *argv)
    assert all(part in line for part in parts), line


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("model: m\nmax-num-sequences: 3\n", ["max-num-sequences", "max-num-seqs"]),
        ("model: m\nconfig: other.yaml\n", ["config"]),
        ("model: m\nmax-num-seqs: '3'\n", ["max-num-seqs", "'3'"]),
        ("model: m\nmax-num-seqs: 3.5\n", ["max-num-seqs", "3.5"]),
        ("model: m\nmax-num-seqs: true\n", ["max-num-seqs", "True"]),
        ("model: m\nlogits-processors: LogitBiasLogitsProcessor\n", ["logits-processors"]),
        ("model: m\nlogits-processors: [5]\n", ["logits-processors"]),
        ("model: 5\n", ["model", "5"]),
        ("model: m\nport: 70000\n", ["port: 70000"]),
        ("max-num-seqs: 3\n", ["--model is needed"]),
        ("- model\n", ["option: value"]),
        ("model\n", ["option: value"]),
        ("", ["option: value"]),
        ("model: [\n", ["options.yaml"]),
        ("model: !!python/object:os.system {}\n", ["options.yaml"]),
    ],
)
def test_bad_yaml_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, parts: list[str]) -> None:
    line = complaint(capsys, "--config", config(tmp_path, text))
    assert all(part in line for part in parts), line


@pytest.mark.parametrize(
    "text",
    [
        "api-key: sk-secret\n",
        "api-key:\n  sk-secret: 1\n",
        "api-key: [sk-secret\n",
        "api-key: [sk-secret, 5]\n",
        "api-key: 'sk-secret\n",
        "api-key: {sk-secret: [}\n",
        "api-key: !!python/name:sk-secret\n",
        "model: m\napi-key: [sk-secret]\nport: 0\n",
    ],
)
def test_no_error_shows_a_key(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str) -> None:
    line = complaint(capsys, "--config", config(tmp_path, text))
    assert "options.yaml" in line or "port" in line
    assert "sk-secret" not in line


def test_yaml_file_that_is_not_text_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "options.yaml"
    path.write_bytes(b"model: \xff\n")
    assert "options.yaml" in complaint(capsys, "--config", str(path))


@pytest.mark.parametrize("name", ["nowhere.yaml", ""])
def test_yaml_file_that_is_not_there_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str) -> None:
    assert str(tmp_path) in complaint(capsys, "--config", str(tmp_path / name))


def test_a_class_among_the_engine_arguments_is_declared_by_its_path() -> None:
    args = EngineArgs(model="smollm2-135m", logits_processors=["LogitBiasLogitsProcessor", ServerArgs])
    declared = args.create_fd_config().structured_outputs_config.logits_processors
    assert declared == ("LogitBiasLogitsProcessor", "fastdeploy_lp.entrypoints.openai.server_args:ServerArgs")


@pytest.mark.parametrize("group", [EngineArgs, ServerArgs])
def test_every_option_may_be_spelled_with_underscores(group: type) -> None:
    for field in dataclasses.fields(group):
        given = {bool: [], int: ["7"], float: ["0.5"]}.get(without_none(get_type_hints(group)[field.name]))
        value = [field.metadata.get("choices", ["a_b-c"])[0]] if given is None else given
        model = [] if field.name == "model" else ["--model", "m"]
        printed, spelled = f"--{field.name}", f"--{field.name.replace('_', '-')}"
        assert OptionsParser(EngineArgs, ServerArgs).parse_args([*model, printed, *value]) == OptionsParser(
            EngineArgs, ServerArgs
        ).parse_args([*model, spelled, *value])
        joined = [f"{printed}={value[0]}"] if value else [f"--no_{field.name}"]
        assert getattr(OptionsParser(EngineArgs, ServerArgs).parse_args([*model, *joined]), field.name) is not None


def test_only_names_are_respelled() -> None:
    (engine_args, _) = parse("--model", "my_model", "--served_model_name=a_b", "--logits_processors", "my_mod:My_Class")
    assert (engine_args.model, engine_args.served_model_name) == ("my_model", ["a_b"])
    assert engine_args.logits_processors == ["my_mod:My_Class"]


def test_the_model_may_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    def first(*argv: str) -> EngineArgs:
        engine_args, _ = OptionsParser(EngineArgs, ServerArgs, first="model").parse_options(argv)
        return engine_args

    assert first("my_model", "--max_num_seqs", "3") == EngineArgs(model="my_model", max_num_seqs=3)
    assert first("--model", "my_model") == EngineArgs(model="my_model")
    with pytest.raises(SystemExit):
        first("my_model", "--model=another")
    assert "--model: is given twice, the first time as 'my_model'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        first("--max-num-seqs", "3", "my_model")
