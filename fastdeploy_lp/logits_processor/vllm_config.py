"""vLLM's configuration object as processors read it, made from an FDConfig."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fastdeploy_lp.config import CacheConfig, ParallelConfig

if TYPE_CHECKING:
    from fastdeploy_lp.config import FDConfig


class HfConfig(SimpleNamespace):
    """The model's `config.json` by attribute, nested objects included; AttributeError for an absent key."""

    @classmethod
    def of(cls, config: dict[str, Any]) -> HfConfig:
        """Returns the configuration of a parsed file."""
        return cls(**{name: cls.of(value) if isinstance(value, dict) else value for name, value in config.items()})

    def to_dict(self) -> dict[str, Any]:
        """Returns the configuration as a dict."""
        return {name: value.to_dict() if isinstance(value, HfConfig) else value for name, value in vars(self).items()}

    def get_text_config(self) -> HfConfig:
        """Returns the text model's configuration: its separate part if there is one, else this one."""
        text = getattr(self, "text_config", None)
        return text if isinstance(text, HfConfig) else self


@dataclass
class VllmModelConfig:
    """Attributes of the model that processors read.

    tokenizer: the directory with the tokenizer's files, as `AutoTokenizer.from_pretrained` takes it.
    dtype: a name, or for processors written for torch a `torch.dtype`.
    trust_remote_code: always False: code in a checkpoint is never run.
    """

    model: str = ""
    dtype: Any = "float32"
    max_model_len: int = 0
    vocab_size: int = 0
    tokenizer: str = ""
    served_model_name: str = ""
    hf_config: HfConfig = field(default_factory=HfConfig)
    trust_remote_code: bool = False
    skip_tokenizer_init: bool = False
    tokenizer_mode: str = "auto"
    tokenizer_revision: str | None = None
    revision: str | None = None
    runner_type: str = "generate"
    is_encoder_decoder: bool = False

    @property
    def hf_text_config(self) -> HfConfig:
        """The text model's part of `hf_config`."""
        return self.hf_config.get_text_config()

    def get_vocab_size(self) -> int:
        """Returns the number of columns of the logits."""
        return self.vocab_size

    def get_hidden_size(self) -> int:
        """Returns the size of the hidden states; raises AttributeError if the model's configuration has none."""
        return int(self.hf_text_config.hidden_size)


@dataclass
class VllmSchedulerConfig:
    """Attributes of the scheduler that processors read."""

    max_num_seqs: int = 0
    max_num_batched_tokens: int = 0
    max_model_len: int = 0


@dataclass
class VllmConfig:
    """The configuration object given to a processor's constructor, with the attributes that processors read.

    Features that this server does not have are None, as in a vLLM that does not use them.
    """

    model_config: VllmModelConfig = field(default_factory=VllmModelConfig)
    scheduler_config: VllmSchedulerConfig = field(default_factory=VllmSchedulerConfig)
    fd_config: FDConfig | None = None
    parallel_config: ParallelConfig = field(default_factory=ParallelConfig)
    cache_config: CacheConfig | None = None
    speculative_config: Any = None
    reasoning_config: Any = None
    lora_config: Any = None
    additional_config: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_fd_config(cls, fd_config: FDConfig) -> VllmConfig:
        """Returns the same configuration under vLLM's names."""
        model, scheduler = fd_config.model_config, fd_config.scheduler_config
        return cls(
            VllmModelConfig(
                model=model.model,
                dtype=model.dtype,
                max_model_len=model.max_model_len,
                vocab_size=model.vocab_size,
                tokenizer=model.directory,
                served_model_name=model.served_model_name,
                hf_config=HfConfig.of(model.hf_config),
                skip_tokenizer_init=model.skip_tokenizer_init,
            ),
            VllmSchedulerConfig(scheduler.max_num_seqs, scheduler.max_num_batched_tokens, model.max_model_len),
            fd_config,
            fd_config.parallel_config,
            fd_config.cache_config,
        )


_current: ContextVar[VllmConfig | None] = ContextVar("current_vllm_config", default=None)


@contextmanager
def set_current_vllm_config(config: VllmConfig) -> Iterator[VllmConfig]:
    """Makes `get_current_vllm_config` return `config` in the block."""
    token = _current.set(config)
    try:
        yield config
    finally:
        _current.reset(token)


def get_current_vllm_config() -> VllmConfig:
    """Returns the configuration of the engine whose processor is being built; raises RuntimeError at any other time."""
    config = _current.get()
    if config is None:
        raise RuntimeError("there is a current vLLM configuration only while a processor's constructor runs")
    return config
