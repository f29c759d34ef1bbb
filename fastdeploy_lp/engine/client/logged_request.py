"""Lines of a request log: engines, and their requests with outputs."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import msgspec

from fastdeploy_lp.config import FDConfig
from fastdeploy_lp.request.outputs import StopCause
from fastdeploy_lp.request.sampling_params import SamplingParams
from fastdeploy_lp.version import __version__

FORMAT = 1
# Bytes hashed at the head and the tail of each file of weights: hashing gigabytes at every start would be slow.
SAMPLE_BYTES = 1 << 20


class LogFormatError(ValueError):
    """A request log line is unreadable; the message is the reason."""


@dataclass(frozen=True)
class LoggedEngine:
    """An engine's properties that affect the tokens of its requests.

    model_digest: digest of config.json, and of the size, head and tail of each file of weights. settings: the parts of
    the configuration that change tokens.
    """

    version: str
    model: str
    model_digest: str
    settings: dict[str, Any]

    @classmethod
    def of(cls, fd_config: FDConfig) -> LoggedEngine:
        """Returns the record of a configuration's engine; reads the model's directory."""
        config, chain = fd_config.model_config, fd_config.structured_outputs_config
        settings = {
            "max_model_len": config.max_model_len,
            "dtype": config.dtype,
            "quantization": config.quantization,
            "kv_cache_dtype": fd_config.cache_config.dtype,
            "logits_processors": list(chain.logits_processors),
            "logits_processors_on_error": chain.on_error,
            "guided_decoding_whitespace": fd_config.guided_decoding_config.json_whitespace,
        }
        return cls(__version__, config.served_model_name, _digest(Path(config.directory)), settings)

    @property
    def id(self) -> str:
        """A hash of all fields, equal for equal engines."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]

    def differences(self, other: LoggedEngine) -> list[str]:
        """Returns the differences as text: `quantization: None, now 'w8a8'`."""
        before, now = self._facts(), other._facts()
        names = [name for name in dict.fromkeys([*before, *now]) if before.get(name) != now.get(name)]
        return [f"{name}: {before.get(name)!r}, now {now.get(name)!r}" for name in names]

    def _facts(self) -> dict[str, Any]:
        return {"version": self.version, "weights": self.model_digest, **self.settings}

    def line(self) -> bytes:
        """As a line of the log."""
        return _line({"kind": "engine", "format": FORMAT, "id": self.id, **asdict(self)})


@dataclass(frozen=True)
class LoggedOutput:
    """One of a request's completions; `finish_reason` is "abort" if its caller left before the end."""

    index: int
    token_ids: list[int]
    finish_reason: str
    stop_reason: StopCause | None = None


@dataclass(frozen=True)
class LoggedRequest:
    """A settled request, with seed and token limit fixed, and its outputs.

    time: its arrival, in seconds since 1970. engine: the `id` of the `LoggedEngine` that ran it. error: why the request
    failed, None if it did not.
    """

    time: float
    request_id: str
    engine: str
    prompt_token_ids: list[int]
    params: SamplingParams
    outputs: list[LoggedOutput]
    error: str | None = None

    def line(self) -> bytes:
        """As a line of the log."""
        content = {field.name: getattr(self, field.name) for field in fields(self)}
        content |= {"params": msgspec.to_builtins(self.params), "outputs": [asdict(each) for each in self.outputs]}
        return _line({"kind": "request", **content})


def read_line(line: bytes) -> LoggedEngine | LoggedRequest:
    """Parses a line of a request log; raises LogFormatError."""
    try:
        content = json.loads(line)
        kind = content.pop("kind")
        if kind == "engine":
            if content.pop("format") != FORMAT:
                raise LogFormatError("was written by another version of this server")
            del content["id"]
            return LoggedEngine(**content)
        if kind != "request":
            raise LogFormatError(f"is of the unknown kind {kind!r}")
        content["params"] = msgspec.convert(content["params"], SamplingParams)
        content["outputs"] = [LoggedOutput(**each) for each in content["outputs"]]
        return LoggedRequest(**content)
    except LogFormatError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise LogFormatError(f"is no record of a request log: {error}") from None


def _line(content: dict[str, Any]) -> bytes:
    # Not msgspec, which writes infinity as null; ASCII, so that no character from a client can end the line.
    return json.dumps(content).encode() + b"\n"


def _digest(directory: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted([directory / "config.json", *directory.glob("*.safetensors")]):
        with path.open("rb") as stream:
            size = path.stat().st_size
            digest.update(f"{path.name} {size} ".encode())
            digest.update(stream.read(SAMPLE_BYTES))
            stream.seek(max(0, size - SAMPLE_BYTES))
            digest.update(stream.read(SAMPLE_BYTES))
    return digest.hexdigest()[:32]
