"""Plugin dicts: `{"logits_processor_class": …, "parameters_model": …}` with `cls(tokenizer, parameters)`."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from fastdeploy_lp.logits_processor.base import LogitsProcessor
from fastdeploy_lp.logits_processor.dialects.base import Dialect
from fastdeploy_lp.logits_processor.dialects.per_request import PerRequestProcessor, RowProcessor
from fastdeploy_lp.logits_processor.errors import LogitsProcessorSpecError
from fastdeploy_lp.logits_processor.processor_args import ProcessorArgs

if TYPE_CHECKING:
    from fastdeploy_lp.config import FDConfig
    from fastdeploy_lp.sampling_params import SamplingParams

CLASS, MODEL = "logits_processor_class", "parameters_model"


class PluginDictDialect(Dialect):
    """One instance a request that names the plugin, called `(token_ids, row) -> row` with the output tokens."""

    name = "plugin-dict"
    by_name_only = True

    def recognizes(self, found: Any) -> bool:
        """Dicts."""
        return isinstance(found, dict)

    def check(self, found: Any, spec: str) -> None:
        """A callable class, and a pydantic model beside it."""
        if CLASS not in found:
            raise LogitsProcessorSpecError(spec, f"is a dict without {CLASS!r}; it needs {CLASS!r} and {MODEL!r}")
        cls, model = found[CLASS], found.get(MODEL)
        if not isinstance(cls, type) or "__call__" not in dir(cls):
            raise LogitsProcessorSpecError(spec, f"[{CLASS!r}] must be a class with __call__(self, token_ids, logits)")
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            raise LogitsProcessorSpecError(spec, f"[{MODEL!r}] must be a pydantic model, class Parameters(BaseModel)")
        try:
            inspect.signature(cls).bind("tokenizer", "parameters")
        except TypeError as error:
            raise LogitsProcessorSpecError(
                spec, f"cannot be built ({error}): write def __init__(self, tokenizer, parameters)"
            ) from None

    def params_model(self, found: Any) -> type[BaseModel] | None:
        """Its `parameters_model`."""
        model: type[BaseModel] = found[MODEL]
        return model

    def validate(self, found: Any, sampling_params: SamplingParams) -> None:
        """The parameters model has checked everything."""

    def build(self, found: Any, fd_config: FDConfig) -> LogitsProcessor:
        """Makes instances as requests come."""
        return PluginDictProcessor(found, Path(fd_config.model_config.directory))

    def class_of(self, found: Any) -> type:
        """The processor class."""
        cls: type = found[CLASS]
        return cls


class PluginDictProcessor(PerRequestProcessor):
    """A plugin dict as the chain sees it."""

    def __init__(self, plugin: dict[str, Any], directory: Path) -> None:
        super().__init__()
        self._class, self._model = plugin[CLASS], plugin[MODEL]
        self._tokenizer = PluginTokenizer(directory)

    def new_instance(self, args: ProcessorArgs) -> RowProcessor:
        """`cls(tokenizer, parameters)`."""
        instance = self._class(self._tokenizer, self._model.model_validate(dict(args)))
        return lambda _, output_ids, row: instance(output_ids, row)


class PluginTokenizer:
    """The model's tokenizer as plugins use it; other methods are those of `tokenizers.Tokenizer`."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "tokenizer.json"
        self._loaded: Any = None

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Token ids of the text."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        """Text of the tokens."""
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        return text

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._tokenizer, name)

    @property
    def _tokenizer(self) -> Any:
        # Read when a plugin first asks: many never do.
        if self._loaded is None:
            from tokenizers import Tokenizer

            self._loaded = Tokenizer.from_file(str(self._path))
        return self._loaded
