"""Model classes by architecture: this package's own families, and families from plugins.

Imports no Paddle: general plugins register models in the API process, too, and a model's module is imported only when a
checkpoint asks for it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from fastdeploy_lp.checkpoint.config_field import texts
from fastdeploy_lp.config.option_values import INSTALL_PADDLEFORMERS, has_paddleformers
from fastdeploy_lp.plugins import Plugin, load_class, normalized_path, running_plugin

if TYPE_CHECKING:
    from paddle import Tensor

    from fastdeploy_lp.config import FDConfig
    from fastdeploy_lp.model_executor.block_copier import BlockCopier
    from fastdeploy_lp.model_executor.forward_batch import SequenceChunk
    from fastdeploy_lp.model_executor.loader.weights import Weights

logger = logging.getLogger(__name__)

MODELS: dict[str, str] = {
    "LlamaForCausalLM": "fastdeploy_lp.model_executor.models.llama:LlamaForCausalLM",
    "Qwen2ForCausalLM": "fastdeploy_lp.model_executor.models.qwen2:Qwen2ForCausalLM",
    "Qwen3ForCausalLM": "fastdeploy_lp.model_executor.models.qwen3:Qwen3ForCausalLM",
    "Ernie4_5ForCausalLM": "fastdeploy_lp.model_executor.models.ernie4_5:Ernie4_5ForCausalLM",
    "MistralForCausalLM": "fastdeploy_lp.model_executor.models.mistral:MistralForCausalLM",
    "Phi3ForCausalLM": "fastdeploy_lp.model_executor.models.phi3:Phi3ForCausalLM",
}
PADDLEFORMERS = "fastdeploy_lp.model_executor.models.paddleformers.causal_lm:PaddleFormersForCausalLM"
METHODS = ("initialize_cache", "forward", "compute_logits")


class CausalLM(Protocol):
    """Interface of a model for the model runner; built as `cls(fd_config, weights)`."""

    def __init__(self, fd_config: FDConfig, weights: Weights) -> None: ...

    def initialize_cache(self, num_blocks: int) -> None:
        """Allocate the KV cache: `num_blocks` blocks, the null block 0 included, in place of a cache that is there."""

    def forward(self, chunks: Sequence[SequenceChunk]) -> Tensor:
        """The final hidden states [rows, hidden_size] that the chunks ask for, in the order of the chunks."""

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Logits [rows, vocab_size] of hidden states [rows, hidden_size], in a tensor that the chain may overwrite."""


@runtime_checkable
class WarmsUp(Protocol):
    """A model that has something to prepare before the first pass."""

    def warm_up(self, max_num_seqs: int) -> None:
        """Prepare passes of up to `max_num_seqs` sequences that generate; called once, the cache being there."""


@runtime_checkable
class ComputesAhead(Protocol):
    """A model that can compute tokens which the host does not know yet."""

    @property
    def computes_ahead(self) -> bool:
        """True if it can on this device."""

    def forward_ahead(self, chunks: Sequence[SequenceChunk], token_ids: Tensor) -> Tensor:
        """As `forward`, of one token each after position 0, in place of which `token_ids` int64 [chunks] are taken."""


@runtime_checkable
class CopiesBlocks(Protocol):
    """A model that can copy blocks of its KV cache."""

    def block_copier(self) -> BlockCopier | None:
        """Returns the model's copier; None if it has none on this device."""


@dataclass(frozen=True)
class _Registration:
    """`model` is a class or its name; `plugin` registered it, None if no plugin did."""

    model: str | type
    plugin: Plugin | None

    @property
    def origin(self) -> str:
        return str(self.plugin) if self.plugin else "ModelRegistry.register_model"


class ModelRegistry:
    """The architectures that can be served; one registry a process, which general plugins fill in each."""

    _registered: ClassVar[dict[str, _Registration]] = {}

    @classmethod
    def register_model(cls, architecture: str, model: str | type) -> None:
        """Let `model` run checkpoints whose `config.json` names `architecture`; it replaces what ran them before.

        model: a class with the methods of `CausalLM`, or its name "module:Class", which is imported when a checkpoint
        asks for it. Registering the same again does nothing.

        Raises ValueError for an architecture that is no name, a text that names no class, and a class without those
        methods.
        """
        if not isinstance(architecture, str) or not architecture.isidentifier():
            raise ValueError(f"register_model: architecture {architecture!r} is no name such as 'MyModelForCausalLM'")
        if isinstance(model, type):
            _require_methods(model, f"register_model: {model.__module__}:{model.__qualname__}")
        else:
            model = _path(model)
        replaced = cls._model_of(architecture)
        if replaced == model:
            return
        registration = _Registration(model, running_plugin())
        if replaced is not None:
            logger.warning("%s replaces the model of %s, %s", registration.origin, architecture, replaced)
        cls._registered[architecture] = registration

    @classmethod
    def get_supported_archs(cls) -> list[str]:
        """The architectures that can be served, this package's own first."""
        return list(dict.fromkeys([*MODELS, *cls._registered]))

    @classmethod
    def resolve(cls, architectures: Sequence[str]) -> type[CausalLM]:
        """The class of the first architecture that is known.

        Raises ValueError listing the known ones when none is, and naming the plugin when its class cannot be used.
        """
        for architecture in architectures:
            model = cls._model_of(architecture)
            if isinstance(model, type):
                return model
            if model is not None:
                return _load(model, architecture, cls._registered.get(architecture))
        raise ValueError(
            f"config.json: architectures {architectures} are not supported; supported are "
            f"{', '.join(cls.get_supported_archs())}"
        )

    @classmethod
    def _model_of(cls, architecture: str) -> str | type | None:
        registration = cls._registered.get(architecture)
        return MODELS.get(architecture) if registration is None else registration.model


def model_class(hf_config: dict[str, Any], model_impl: str = "auto") -> type[CausalLM]:
    """The class for `config.json`'s `architectures`; raises ValueError, listing the known ones.

    model_impl: see `ModelConfig`. "auto" is PaddleFormers for architectures that are not registered.
    """
    architectures = texts(hf_config, "architectures")
    known = not set(architectures).isdisjoint(ModelRegistry.get_supported_archs())
    if model_impl == "paddleformers" or (model_impl == "auto" and not known and has_paddleformers()):
        return _load(PADDLEFORMERS, "model_impl", None)
    try:
        return ModelRegistry.resolve(architectures)
    except ValueError as error:
        if known or model_impl == "native":
            raise
        raise ValueError(f"{error}; PaddleFormers has others: run `{INSTALL_PADDLEFORMERS}`") from None


def _path(model: object) -> str:
    try:
        return normalized_path(model)
    except ValueError as error:
        raise ValueError(f"register_model: {error}, or give the class") from None


def _load(path: str, architecture: str, registration: _Registration | None) -> type[CausalLM]:
    who = f"{registration.origin}: {architecture}" if registration else architecture
    try:
        found = load_class(path)
    except ValueError as error:
        raise ValueError(f"{who}: {error}") from error
    _require_methods(found, f"{who}: {path!r}")
    return found


def _require_methods(model: type, what: str) -> None:
    lacking = [name for name in METHODS if not callable(getattr(model, name, None))]
    if lacking:
        raise ValueError(f"{what} has no {' and no '.join(lacking)}; a model has {', '.join(METHODS)}")
