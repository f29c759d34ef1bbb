"""Command-line options from dataclass fields, so that CLI, YAML and keyword arguments cannot diverge."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import yaml

from fastdeploy_lp.config.option_values import without_none
from fastdeploy_lp.entrypoints.usage import CommandParser, choices_shown, one_of
from fastdeploy_lp.request.suggestion import did_you_mean

Options = TypeVar("Options")


class OptionsParser(CommandParser):
    """A parser for the fields of dataclasses as `--field-name` options, with defaults from `--config FILE.yaml`.

    A field's metadata has its "help", and may have "choices", "secret" (errors do not show its value), its "group" on
    the help page (else the first line of the dataclass's docstring), "short" names in addition to the long one, and
    "former" names of the field, which count on the command line and in the file but are not on the help page. A
    "positional" field has no name on the command line.
    The command line overrides the file; an unknown key in the file is an error. `--field_name` is equivalent to
    `--field-name`, in the file and on the command line. `first` names the option whose name may be omitted if its value
    is the first argument.
    """

    def __init__(self, *groups: type[Any], first: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs, formatter_class=_Formatter)
        self._first = first
        self._groups = groups
        self._former: dict[str, str] = {}
        self.add_argument("--config", metavar="FILE", help="YAML file with these same options")
        sections: dict[str, Any] = {}
        for group in groups:
            hints = get_type_hints(group)
            for field in dataclasses.fields(group):
                title = field.metadata.get("group") or _first_line(group)
                section = sections.get(title) or self.add_argument_group(title)
                sections[title] = section
                if field.metadata.get("positional"):
                    section.add_argument(field.name, nargs="?", metavar="FILE", help=field.metadata["help"])
                    continue
                names = [*field.metadata.get("short", ()), _flag(field.name)]
                declared = _argument(field, hints[field.name])
                section.add_argument(*names, dest=field.name, **declared)
                for former in field.metadata.get("former", ()):
                    self._former[former] = field.name
                    section.add_argument(_flag(former), dest=field.name, **{**declared, "help": argparse.SUPPRESS})

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parses as argparse does; all other parse methods call this one."""
        given = _with_hyphens(sys.argv[1:] if args is None else args)
        if self._first is not None and given and not given[0].startswith("-"):
            given = self._with_its_name(_flag(self._first), given)
        return super().parse_known_args(given, namespace)

    def parse_options(self, argv: Sequence[str] | None = None) -> list[Any]:
        """Returns one object of each dataclass; on an error, exits with status 2 and a one-line message."""
        given = {name: value for name, value in vars(self.parse_args(argv)).items() if value is not None}
        try:
            return self._build(self._read_config(given.pop("config", None)) | given)
        except ValueError as error:
            self.error(str(error))

    def read_mapping(self, source: str, content: Any) -> list[Any]:
        """Does the same for a mapping of options to values; raises ValueError naming the source and the option."""
        return self._build(self._checked_mapping(source, content))

    def _build(self, values: dict[str, Any]) -> list[Any]:
        built = []
        for group in self._groups:
            fields = {field.name: field for field in dataclasses.fields(group)}
            for name, field in fields.items():
                required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
                if required and name not in values:
                    shown = name if field.metadata.get("positional") else _flag(name)
                    raise ValueError(f"{shown} is needed: {field.metadata['help']}")
            built.append(group(**{name: value for name, value in values.items() if name in fields}))
        return built

    def _read_config(self, path: str | None) -> dict[str, Any]:
        if path is None:
            return {}
        try:
            content = yaml.safe_load(Path(path).read_text())
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"--config {path}: {' '.join(str(error).split())}") from None
        except yaml.YAMLError as error:
            raise ValueError(f"--config {path}: {_place_of(error)}") from None
        return self._checked_mapping(f"--config {path}", content)

    def _checked_mapping(self, source: str, content: Any) -> dict[str, Any]:
        if not isinstance(content, dict):
            raise ValueError(f"{source}: must hold option: value lines")
        return {self._field(str(key)): self._checked(source, str(key), value) for key, value in content.items()}

    def _checked(self, source: str, key: str, value: Any) -> Any:
        hints = {name: hint for group in self._groups for name, hint in get_type_hints(group).items()}
        name = self._field(key)
        if name not in hints:
            raise ValueError(f"{source}: {key} is no option{did_you_mean(_name(name), map(_name, hints))}")
        if not _fits(value, hints[name]):
            shown = "its value" if name in self._secrets() else repr(value)
            raise ValueError(f"{source}: {key}: {shown} has the wrong type")
        return value

    def _field(self, key: str) -> str:
        name = key.replace("-", "_")
        return self._former.get(name, name)

    def _with_its_name(self, flag: str, argv: list[str]) -> list[str]:
        if any(argument.partition("=")[0] == flag for argument in argv):
            self.error(f"{flag}: is given twice, the first time as {argv[0]!r}")
        return [flag, *argv]

    def _secrets(self) -> set[str]:
        fields = (field for group in self._groups for field in dataclasses.fields(group))
        return {field.name for field in fields if field.metadata.get("secret")}


def _place_of(error: yaml.YAMLError) -> str:
    """Returns the error with its position, but without the text there, which may be a key."""
    mark = getattr(error, "problem_mark", None)
    where = "" if mark is None else f" in line {mark.line + 1}, column {mark.column + 1}"
    return f"no valid YAML{where}"


def _first_line(group: type[Any]) -> str:
    """Returns the first line of a dataclass's docstring, up to a semicolon, as a title."""
    return (group.__doc__ or group.__name__).partition("\n")[0].partition(";")[0].rstrip(".")


class _Formatter(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=38, width=110)


def _with_hyphens(argv: Sequence[str]) -> list[str]:
    """Returns the arguments with `--like_this` spelled `--like-this`; keeps values, and all arguments after `--`."""
    end = argv.index("--") if "--" in argv else len(argv)
    spelled = []
    for argument in argv[:end]:
        name, equals, value = argument.partition("=")
        spelled.append(f"{_name(name)}{equals}{value}" if argument.startswith("--") else argument)
    return [*spelled, *argv[end:]]


def _name(field: str) -> str:
    return field.replace("_", "-")


def _flag(field: str) -> str:
    return f"--{_name(field)}"


def _argument(field: dataclasses.Field[Any], hint: Any) -> dict[str, Any]:
    text = field.metadata["help"]
    if field.default not in (None, dataclasses.MISSING):
        text = f"{text} (default: {field.default})"
    kind = without_none(hint)
    if kind is bool:
        return {"action": argparse.BooleanOptionalAction, "default": None, "help": text}
    if "choices" in field.metadata:
        choices = field.metadata["choices"]
        return {"type": one_of(choices), "metavar": choices_shown(choices), "help": text}
    if get_origin(kind) is list:
        return {"action": "extend", "nargs": "+", "metavar": field.metadata.get("metavar", "SPEC"), "help": text}
    if get_origin(kind) is dict:
        # As JSON; the file may have the object itself.
        return {"type": str, "metavar": field.metadata.get("metavar", "JSON"), "help": text}
    return {"type": kind, "metavar": kind.__name__.upper(), "help": text}


def _fits(value: Any, hint: Any) -> bool:
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    return any(_fits_kind(value, kind) for kind in kinds if kind is not type(None))


def _fits_kind(value: Any, kind: Any) -> bool:
    if get_origin(kind) is list:
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, get_origin(kind) or kind) and not (kind is int and isinstance(value, bool))
