"""Declared processors from an operator's SPECs, with every mistake reported before a model is loaded."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from fastdeploy_lp.logits_processor.declared import BROUGHT, MAX_REWIND_NAME, DeclaredProcessor
from fastdeploy_lp.logits_processor.dialects import DIALECTS, Dialect
from fastdeploy_lp.logits_processor.dialects.plugin_dict import CLASS
from fastdeploy_lp.logits_processor.dialects.wasm import WasmDialect
from fastdeploy_lp.logits_processor.errors import LogitsProcessorSpecError
from fastdeploy_lp.logits_processor.stages import require_stage
from fastdeploy_lp.logits_processor.vllm_compat import stand_ins_are_installed
from fastdeploy_lp.logits_processor.wasm.errors import WasmError
from fastdeploy_lp.logits_processor.wasm.module import SUFFIX, WasmModule
from fastdeploy_lp.platforms.imports import quiet_paddle
from fastdeploy_lp.plugins import (
    PLUGINS_VARIABLE,
    Plugin,
    PluginError,
    PluginGroup,
    PluginState,
    allowed_plugins,
    installed_plugins,
    load,
)
from fastdeploy_lp.request.limits import MAX_REWIND
from fastdeploy_lp.request.suggestion import did_you_mean

# Modules of `builtin/`, with the prefixes of "LogitsProcessor" in the names of their classes.
_BUILTIN_MODULES = {
    "logit_bias": ("LogitBias",),
    "sequence_bias": ("CiteFromPrompt", "SequenceBias"),
    "phrases": ("ForceLastPhrase", "LowConfidenceFallback", "TriggerPhrase"),
    "forcing": ("ForcedSequence", "MaxTime", "ThinkingBudget"),
    "lengths": ("GenLength", "ExponentialLengthDecay"),
    "multiple_choice": ("MultipleChoice",),
    "classification": ("ClassProbabilities",),
    "watermark": ("Watermark",),
    "keyed_draws": ("GumbelWatermark", "SynthIDWatermark"),
    "mirostat": ("Mirostat",),
    "phrase_ban": ("PhraseBan",),
    "bans": ("AllowedTokens", "BadWords", "MinTokens"),
    "penalties": ("RepetitionPenalty", "PresencePenalty", "FrequencyPenalty"),
    "repetitions": ("NoRepeatNGram", "DRY"),
    "filters": ("MinP", "TopNSigma", "TypicalP", "EpsilonCutoff", "EtaCutoff", "XTC"),
}
BUILTIN: dict[str, str] = {
    f"{name}LogitsProcessor": f"fastdeploy_lp.logits_processor.builtin.{module}:{name}LogitsProcessor"
    for module, names in _BUILTIN_MODULES.items()
    for name in names
}


MAX_BROUGHT = 256
"""Uploaded processors that a process keeps loaded."""


def load_processors(
    specs: Sequence[str],
    objects: Mapping[str, object] | None = None,
    *,
    mandatory: Collection[str] = (),
    vllm_entry_points: bool = False,
) -> list[DeclaredProcessor]:
    """Returns the chain in execution order: entry points that `specs` does not declare, then `specs` in their order.

    `objects` maps a SPEC to a processor passed as an object; `mandatory` names processors that every request uses;
    `vllm_entry_points` includes vLLM's group of entry points. Raises LogitsProcessorSpecError for a SPEC that does not
    lead to a processor and for two of one name, and ValueError for a name that cannot be mandatory.
    """
    plugins = _allowed_by_name(vllm_entry_points=vllm_entry_points)
    explicit = {_split_alias(spec)[1] for spec in specs}
    order = [name for name in plugins if name not in explicit] + list(specs)
    declared: list[DeclaredProcessor] = []
    for spec in order:
        processor = _declare(spec, objects or {}, plugins)
        if any(processor.name == other.name for other in declared):
            raise LogitsProcessorSpecError(
                spec, f"is a second {processor.name}; names must be unique, write another_name={_split_alias(spec)[1]}"
            )
        declared.append(processor)
    _require_for_all(mandatory, declared)
    seeing = [processor for processor in declared if not processor.dialect.by_name_only]
    claimed = frozenset(name for processor in seeing for name in processor.argument_names)
    return [replace(each, mandatory=each.name in mandatory, claimed=claimed) for each in declared]


def _require_for_all(mandatory: Collection[str], declared: Sequence[DeclaredProcessor]) -> None:
    """Raises ValueError for a name that is not declared, and for a processor that cannot serve every request."""
    by_name = {processor.name: processor for processor in declared}
    for name in mandatory:
        if name not in by_name:
            raise ValueError(f"mandatory: {name!r} is not declared; declared are {', '.join(by_name) or 'none'}")
        dialect = by_name[name].dialect
        # Other dialects have one instance for all requests.
        reason = dialect.why_it_needs_args(by_name[name].found) if dialect.by_name_only else None
        if reason is not None:
            problem = f"{name} cannot be made for a request that passes it no arguments ({reason})"
            raise ValueError(f"mandatory: {problem}; give all of its arguments defaults")


def load_processor(spec: str, found: object = None) -> DeclaredProcessor:
    """Returns one processor, independent of other installed ones; raises LogitsProcessorSpecError.

    `found` is the processor of the SPEC if it was passed as an object. Knows vLLM's entry points while its stand-ins
    are installed.
    """
    plugins = _allowed_by_name(vllm_entry_points=stand_ins_are_installed())
    return _declare(spec, {} if found is None else {spec: found}, plugins)


@lru_cache(maxsize=MAX_BROUGHT)
def load_brought(spec: str) -> DeclaredProcessor:
    """Returns a processor that a client has uploaded, from its SPEC, whose path has a digest of its content.

    The file is known to be valid. Raises LogitsProcessorSpecError if it is gone.
    """
    alias, target = _split_alias(spec)
    module = _read_module(target, spec)
    return DeclaredProcessor(alias or module.name, spec, BROUGHT, module, WasmDialect())


def _declare(spec: str, objects: Mapping[str, object], plugins: Mapping[str, Plugin]) -> DeclaredProcessor:
    alias, target = _split_alias(spec)
    if spec in objects:
        source, found = "object", objects[spec]
    elif target in BUILTIN:
        source, found = "builtin", _load_path(BUILTIN[target], spec)
    elif target in plugins:
        source, found = "entry point", _load_plugin(plugins[target], spec)
    elif target.endswith(SUFFIX):
        source, found = "file", _read_module(target, spec)
    else:
        source, found = "module", _load_path(_require_path(target, spec, plugins), spec)
    dialect = find_dialect(found, spec)
    own_name = target if source == "entry point" else dialect.class_of(found).__name__
    return DeclaredProcessor(alias or own_name, spec, source, found, dialect)


def find_dialect(found: object, spec: str) -> Dialect:
    """Returns the dialect of `found` after the dialect's check; raises LogitsProcessorSpecError."""
    dialect = next((dialect for dialect in DIALECTS if dialect.recognizes(found)), None)
    if dialect is not None:
        dialect.check(found, spec)
        require_stage(dialect.class_of(found), spec, may_draw=dialect.may_draw)
        _check_max_rewind(dialect.class_of(found), spec)
        return dialect
    if not isinstance(found, type):
        raise LogitsProcessorSpecError(spec, f"is no class but {type(found).__name__}; name the class itself")
    raise LogitsProcessorSpecError(
        spec,
        "must be a subclass of LogitsProcessor: derive it from fastdeploy_lp.openai.logits_processor.LogitsProcessor, "
        "or from the class of that name in fastdeploy_lp.logits_processor.vllm_mrv2 or .vllm_v1; a class without a "
        "base is called (input_ids, scores) or (prompt_ids, output_ids, logits), by these names",
    )


def _check_max_rewind(cls: object, spec: str) -> None:
    declared = getattr(cls, MAX_REWIND_NAME, 0)
    if type(declared) is not int or not 0 <= declared <= MAX_REWIND:
        problem = f"has the {MAX_REWIND_NAME} {declared!r}"
        raise LogitsProcessorSpecError(spec, f"{problem}; it must be an integer of the class, 0 to {MAX_REWIND}")


def _split_alias(spec: str) -> tuple[str | None, str]:
    alias, equals, target = spec.partition("=")
    if not equals:
        return None, spec
    if not alias.isidentifier() or not target:
        raise LogitsProcessorSpecError(spec, "must read alias=SPEC, the alias being a name like my_bias")
    return alias, target


def _allowed_by_name(*, vllm_entry_points: bool = False) -> dict[str, Plugin]:
    """Returns the allowed plugins sorted by name, so that every process has the same chain.

    Of two with one name it returns the last, which refuses to be loaded. For a distribution with one name in both
    groups, the plugin in this package's group counts.
    """
    found = {plugin.name: plugin for plugin in allowed_plugins(PluginGroup.LOGITS_PROCESSOR)}
    for plugin in allowed_plugins(PluginGroup.VLLM_LOGITS_PROCESSOR) if vllm_entry_points else ():
        other = found.get(plugin.name)
        if other is None or other.group is plugin.group:
            found[plugin.name] = plugin
        elif other.distribution != plugin.distribution:
            found[plugin.name] = replace(plugin, namesake=other.distribution)
    return dict(sorted(found.items()))


def _load_plugin(plugin: Plugin, spec: str) -> object:
    try:
        return load(plugin).found
    except PluginError as error:
        cause = error.__cause__
        advice = f"mend or uninstall its package, or leave it out of {PLUGINS_VARIABLE}{_compat_advice(cause)}"
        if error.state is PluginState.INCOMPATIBLE:
            advice = f"or leave it out of {PLUGINS_VARIABLE}"
        problem = f"is an installed entry point ({plugin.value} of {plugin.distribution} {plugin.version})"
        raise LogitsProcessorSpecError(spec, f"{problem}: {error.reason}; {advice}") from cause


def _require_path(target: str, spec: str, names: Iterable[str]) -> str:
    module_path, colon, class_path = target.partition(":")
    if not colon:
        raise LogitsProcessorSpecError(spec, _no_colon(target, [*BUILTIN, *names]))
    if not module_path or not class_path or ":" in class_path:
        raise LogitsProcessorSpecError(spec, "must read module.path:ClassName")
    return target


def _no_colon(target: str, names: list[str]) -> str:
    guess = did_you_mean(target, names)
    if any(plugin.name == target for plugin in installed_plugins(PluginGroup.LOGITS_PROCESSOR)):
        guess = f"; the installed plugin of this name is left out by {PLUGINS_VARIABLE}"
    elif any(plugin.name == target for plugin in allowed_plugins(PluginGroup.VLLM_LOGITS_PROCESSOR)):
        guess = "; the installed plugin of this name is one for vLLM: add --vllm-compat"
    if "." in target:
        module_path, _, class_name = target.rpartition(".")
        guess = f"; for a class of your own write {module_path}:{class_name}"
    return f"is no name known here and has no colon (module.path:ClassName){guess}; names are {', '.join(names)}"


def _read_module(path: str, spec: str) -> WasmModule:
    try:
        return WasmModule.read(Path(path))
    except WasmError as error:
        raise LogitsProcessorSpecError(spec, str(error)) from None


def _load_path(path: str, spec: str) -> object:
    module_path, _, class_path = path.partition(":")
    return _attribute(_import(module_path, spec), class_path, spec)


def _import(module_path: str, spec: str) -> Any:
    try:
        with quiet_paddle():
            return importlib.import_module(module_path)
    except ModuleNotFoundError as error:
        absent = error.name or module_path
        if module_path == absent or module_path.startswith(f"{absent}."):
            hint = "check the spelling, and that its folder is on PYTHONPATH or its package installed"
            problem = f"names the module {absent!r}, which cannot be found; {hint}"
            raise LogitsProcessorSpecError(spec, problem) from None
        problem = f"cannot be used: importing {module_path!r} failed: {_one_line(error)}"
        raise LogitsProcessorSpecError(spec, f"{problem}; install what it needs{_compat_advice(error)}") from error
    except (Exception, SystemExit) as error:  # an author's module may raise any exception, and a script may exit
        problem = f"cannot be used: importing {module_path!r} failed: {type(error).__name__}: {_one_line(error)}"
        raise LogitsProcessorSpecError(spec, f"{problem}{_compat_advice(error)}") from error


def _compat_advice(error: BaseException | None) -> str:
    absent = (error.name if isinstance(error, ImportError) else None) or ""
    package = absent.partition(".")[0]
    if package == "vllm" and stand_ins_are_installed():
        return "; --vllm-compat has no stand-in for it, so the package needs vLLM itself"
    written_for = {"vllm": "vLLM", "fastdeploy": "FastDeploy"}.get(absent)
    return "" if written_for is None else f"; for a package written for {written_for} add --{package}-compat"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _attribute(module: Any, class_path: str, spec: str) -> object:
    found = module
    for part in class_path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            problem = f"is not there: {module.__name__} has no {class_path!r}{_has(module)}"
            raise LogitsProcessorSpecError(spec, problem) from None
        except Exception as error:  # a module may import its attributes at their first use
            problem = f"cannot be used: {module.__name__}.{class_path}: {type(error).__name__}: {_one_line(error)}"
            raise LogitsProcessorSpecError(spec, problem) from error
    return found


def _has(module: Any) -> str:
    names = sorted(name for name, value in vars(module).items() if _is_one(value))
    return f"; it has {', '.join(names)}" if names else "; it has no LogitsProcessor classes"


def _is_one(value: object) -> bool:
    # Base classes that a module only imports are abstract.
    if isinstance(value, dict):
        return CLASS in value
    return not inspect.isabstract(value) and any(dialect.recognizes(value) for dialect in DIALECTS)
