"""Package definition of fastdeploy-lp; tool settings live in pyproject.toml."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
OPS = ROOT / "fastdeploy_lp" / "model_executor" / "ops"
VERSION = re.search(r'__version__ = "([^"]+)"', (ROOT / "fastdeploy_lp" / "version.py").read_text()).group(1)

RUNTIME = [
    "cloudpickle>=3.1",
    "fastapi>=0.115",
    "gguf>=0.17",
    "httptools>=0.6.4",
    "huggingface-hub>=0.34",
    "jinja2>=3.1.5",
    "llguidance>=1.9",
    "ml-dtypes>=0.5",
    "msgspec>=0.19",
    "numpy>=1.26",
    "packaging>=23",
    "prometheus-client>=0.21",
    "pydantic>=2.12",
    "pyyaml>=6.0.2",
    "pyzmq>=26.2",
    "safetensors>=0.5",
    "tokenizers>=0.21",
    "tqdm>=4.67",
    "typing-extensions>=4.12",
    "uvicorn>=0.34",
    "uvloop>=0.21",
]

EXTRAS = {
    "cpu": ["paddlepaddle>=3.3.1,<3.4"],
    # Found on PaddlePaddle's own package index; the public one stops at 2.6.2.
    # NVIDIA's compiler for the kernels of the sampler: Paddle's build for CUDA 12 pins a release of it.
    "gpu": ["nvidia-cuda-nvrtc-cu12>=12.4", "nvidia-ml-py>=12.535", "paddlepaddle-gpu>=3.3.1,<3.4"],
    # Replicas on a cluster: `serve run configs/ray-serve.yaml`.
    "ray": ["ray[serve]>=2.50"],
    # Model families beyond our own: `--model-impl`. Another release has other classes.
    "paddleformers": ["paddleformers>=1.2,<1.3"],
    # For processors written for torch: vLLM's, or Hugging Face's.
    "torch": ["torch>=2.4"],
    # Processors in WebAssembly, and uploads. Another release may have another C interface.
    "wasm": ["wasmtime>=50,<51"],
    # Spans of requests: `--otlp-traces-endpoint`.
    "otel": ["opentelemetry-sdk>=1.30", "opentelemetry-exporter-otlp-proto-http>=1.30"],
    "dev": [
        # Another release formats otherwise.
        "clang-format==19.1.7",
        "httpx>=0.28",
        "hypothesis>=6.120",
        "jsonschema>=4.23",
        "kubernetes-validate>=1.37",
        "mypy>=1.15",
        # Compiles the CUDA kernels without a GPU; this release knows all that tests compile for.
        "nvidia-cuda-nvrtc-cu12>=12.9",
        "openai>=2",
        "opentelemetry-exporter-otlp-proto-http>=1.30",
        "opentelemetry-sdk>=1.30",
        "pytest>=8.3",
        "pytest-xdist>=3.6",
        "ruff>=0.9",
        "schemathesis>=4",
        "selenium>=4.40",
        "sentencepiece>=0.2.1",
        # The release whose CPU build the tests run with; a newer one from the public index brings CUDA along.
        "torch==2.13.0",
        "transformers>=5",
        "types-PyYAML",
        "types-jsonschema",
        "types-tqdm",
        "wasmtime>=50,<51",
    ],
}


def load_ops_build() -> ModuleType:
    """The module that compiles, without the package, which is not installed yet."""
    spec = importlib.util.spec_from_file_location("ops_build", OPS / "build.py")
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    return build


build = load_ops_build()
PACKAGED = f"compiled/{build.library_name()}"


# Not for an editable install: make compiles beside pip, and otherwise the worker does on first use.
if {"bdist_wheel", "build"} & set(sys.argv):
    build.compile_packaged()

setup(
    name="fastdeploy-lp",
    version=VERSION,
    description="A serving backend on PaddlePaddle built around logits processors",
    long_description=(ROOT / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10",
    # The top-level names `entrypoints` and `worker` of a checkout are links, not packages of their own.
    packages=find_packages(include=["fastdeploy_lp", "fastdeploy_lp.*"]),
    package_data={
        "fastdeploy_lp": ["py.typed"],
        "fastdeploy_lp.entrypoints.playground": ["static/*"],
        "fastdeploy_lp.entrypoints.scaffold": ["templates/*/*"],
        "fastdeploy_lp.logits_processor.wasm": ["include/*"],
        "fastdeploy_lp.model_executor.ops": ["csrc/*", "csrc/*/*", "cuda/kernels/*", "cuda/kernels/*/*", PACKAGED],
    },
    install_requires=RUNTIME,
    extras_require=EXTRAS,
    entry_points={
        "console_scripts": ["fastdeploy-lp = fastdeploy_lp.entrypoints.cli:main"],
        # Under the module's own name, so that `pytest -p fastdeploy_lp.pytest_plugin` does not load it a second time.
        "pytest11": ["fastdeploy_lp.pytest_plugin = fastdeploy_lp.pytest_plugin"],
    },
)
