"""The servers of a comparison, as data: how each is started and what it computes with."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from peers.instructions import Probe, of_llama, of_onednn, of_ours

REPOSITORY = Path(__file__).resolve().parents[2]
OUR_SERVER = "fastdeploy_lp.entrypoints.openai.api_server"
SLOTS = 32
CONTEXT = 2048
# Engines' different names of one precision: ratios compare the names in one line here.
SAME_PRECISION = (("float32", "f32"), ("w8a8", "q8_0"), ("bfloat16", "bf16"), ("q4_1", "q4_0"))


@dataclass(frozen=True)
class Contender:
    """One server in one configuration.

    engine, precision: its name in the tables. command: what starts it, with `{port}` for the port; it listens on
    127.0.0.1 and answers /health and /v1. environment: set on top of the usual one. version: what is measured, in
    words. ours: whether the others are its peers. takes_logit_bias: whether it acts on OpenAI's `logit_bias`. source:
    the format of the weights that it loads, where a comparison has several. probe: how to see its instruction sets.
    """

    engine: str
    precision: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    version: str = ""
    ours: bool = False
    takes_logit_bias: bool = True
    source: str = ""
    probe: Probe | None = None

    @property
    def name(self) -> str:
        """Its name in tables."""
        return f"{self.engine}, {self.label}"

    @property
    def label(self) -> str:
        """Its precision, and the source of its weights where there are several."""
        return f"{self.precision} from {self.source}" if self.source else self.precision

    @property
    def arithmetic(self) -> str:
        """The precision, the same for names that mean the same."""
        lower = self.precision.lower()
        return next((names[0] for names in SAME_PRECISION if lower in names), lower)


def our_contender(model: str, precision: str, source: str = "") -> Contender:
    """This project's server with the builtin logit bias declared, as `make serve` has it."""
    chosen = {"float32": (), "bfloat16": ("--dtype", "bfloat16")}.get(precision, ("--quantization", precision))
    collect = (sys.executable, "-m", "fastdeploy_lp", "collect-env")
    options = ("--model", model, "--port", "{port}", "--max-num-seqs", str(SLOTS), "--max-model-len", str(CONTEXT))
    return Contender(
        "fastdeploy_lp",
        precision,
        (sys.executable, "-m", OUR_SERVER, *options, *chosen, "--logits-processors", "LogitBiasLogitsProcessor"),
        {"PYTHONPATH": str(REPOSITORY)},
        ours=True,
        source=source,
        probe=Probe(of_ours, command=collect),
    )


def vllm_contender(
    python: str, directory: Path, precision: str, environment: Mapping[str, str], activations: str = "bfloat16"
) -> Contender:
    """vLLM's CPU build; `directory` is in Hugging Face layout, quantized already unless the precision is a dtype.

    `activations` is the dtype beside quantized weights: with AMX, vLLM's int8 products refuse float32.
    """
    dtype = precision if precision in ("float32", "bfloat16") else activations
    both = {
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{(os.cpu_count() or 1) - 1}",
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    options = ("--host", "127.0.0.1", "--port", "{port}", "--dtype", dtype, "--max-model-len", str(CONTEXT))
    return Contender(
        "vLLM",
        precision,
        (python, "-m", "vllm.entrypoints.cli.main", "serve", str(directory), *options, "--max-num-seqs", str(SLOTS)),
        both | dict(environment),
        probe=Probe(of_onednn, environment={"ONEDNN_VERBOSE": "1"}),
    )


def llama_contender(binary: str, gguf: Path, precision: str) -> Contender:
    """llama.cpp's server on a GGUF file, with a slot for each request of the highest level."""
    threads = str(os.cpu_count() or 1)
    options = ("--host", "127.0.0.1", "--port", "{port}", "--threads", threads, "--threads-batch", threads)
    cache = ("--parallel", str(SLOTS), "--ctx-size", str(SLOTS * CONTEXT // 2), "--kv-unified", "--no-webui")
    command = (binary, "--model", str(gguf), *options, *cache)
    return Contender("llama.cpp", precision, command, probe=Probe(of_llama, arguments=("--log-verbosity", "4")))


def hugging_face_contender(directory: Path) -> Contender:
    """`generate` of transformers behind a small server, in this interpreter."""
    script = str(Path(__file__).with_name("hf_server.py"))
    command = (sys.executable, script, str(directory), "--port", "{port}", "--max-batch", str(SLOTS))
    return Contender("Hugging Face generate", "float32", command, {"HF_HUB_OFFLINE": "1"}, takes_logit_bias=False)


def printable(contender: Contender) -> str:
    """Its start command as typed in a shell, without the folders of this machine."""
    settings = [f"{name}={value}" for name, value in contender.environment.items() if name != "PYTHONPATH"]
    return " ".join(without_folders(word) for word in (*settings, *contender.command))


def without_folders(text: str) -> str:
    """Paths cut down to their last part: results are published."""
    return re.sub(r"(?:/[^/\s:'\"]+)+/(?=[^/\s])", "", text)
