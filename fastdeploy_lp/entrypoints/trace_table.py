"""Traces rendered as a table for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fastdeploy_lp.trace import RAN, ShadowReport, TokenTrace, TracedToken, TraceStage

BOLD, DIM, RED, GREEN, YELLOW, CYAN = "1", "2", "31", "32", "33", "36"
# Shares of probability mass moved, from which a change counts as noticeable and as great.
NOTICEABLE, GREAT = 0.01, 0.3


@dataclass(frozen=True)
class TraceTable:
    """Renders traces. color: use ANSI sequences. width: maximum characters per line, None for no limit."""

    color: bool = False
    width: int | None = None

    def of(self, trace: Sequence[TokenTrace]) -> str:
        """Returns one block of lines per token, one line per stage."""
        return "\n".join("\n".join(self._token(place, each)) for place, each in enumerate(trace, start=1))

    def shadows(self, reports: Mapping[str, ShadowReport]) -> str:
        """Returns one line per processor in shadow."""
        return "\n".join(self._report(name, report) for name, report in reports.items())

    def _token(self, place: int, trace: TokenTrace) -> Iterator[str]:
        names = [stage.name for stage in trace.stages]
        column = max(len(name) for name in [*names, "stage"])
        title = f"token {place}: {shown(trace.decoded_token)} ({trace.token_id})"
        yield self._painted(title, BOLD)
        yield self._painted(f"  {'stage':<{column}}   moved  entropy  sampled  rank  most likely", DIM)
        for stage in trace.stages:
            yield self._stage(trace.token_id, stage, column)
        for name, shadow in trace.shadows.items():
            if shadow.failed:
                yield self._painted(f"  {name} failed in shadow", RED)
            elif shadow.changed:
                other = "nothing" if shadow.decoded_token is None else shown(shadow.decoded_token)
                yield self._painted(f"  with {name}, in shadow, it would be {other}", YELLOW)

    def _stage(self, token_id: int, stage: TraceStage, column: int) -> str:
        name = f"{stage.name:<{column}}"
        if stage.status != RAN or stage.sampled is None:
            return f"  {self._painted(f'{name}  {stage.status}', DIM)}"
        moved = stage.mass_moved or 0.0
        loud = RED if moved >= GREAT else YELLOW if moved >= NOTICEABLE else DIM
        numbers = (
            f"{self._painted(f'{moved:6.1%}', loud)}  {stage.entropy or 0.0:7.3f}  "
            f"{stage.sampled.probability:7.2%}  {stage.sampled.rank:4}"
        )
        # Width without the color sequences.
        taken = 2 + column + 2 + 6 + 2 + 7 + 2 + 7 + 2 + 4 + 2
        flipped = f"{self._painted('flipped', RED)} " if stage.flipped else ""
        room = None if self.width is None else self.width - taken - (8 if stage.flipped else 0)
        return f"  {self._painted(name, CYAN)}  {numbers}  {flipped}{self._top(token_id, stage.top, room)}"

    def _top(self, token_id: int, top: Sequence[TracedToken], room: int | None) -> str:
        """Returns as many tokens as fit into `room` characters, but at least one."""
        parts: list[str] = []
        used = 0
        for token in top:
            text = f"{shown(token.decoded_token)} {token.probability:.1%}"
            used += len(text) + (2 if parts else 0)
            if parts and room is not None and used > room:
                break
            parts.append(self._painted(text, GREEN) if token.token_id == token_id else text)
        return "  ".join(parts)

    def _report(self, name: str, report: ShadowReport) -> str:
        failed = f", {report.faults} failed" if report.faults else ""
        line = f"{name} in shadow would have changed {report.changed} of {report.tokens} tokens{failed}"
        return self._painted(line, YELLOW if report.changed or report.faults else DIM)

    def _painted(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.color else text


def shown(text: str) -> str:
    """Returns a token in quotes, with control characters escaped for the terminal."""
    inner = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
    return f'"{inner}"'
