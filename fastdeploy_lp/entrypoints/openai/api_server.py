"""`python -m fastdeploy_lp.entrypoints.openai.api_server --model … --logits-processors …`."""

from __future__ import annotations

from collections.abc import Sequence

from fastdeploy_lp.platforms.imports import quick_imports


def main(argv: Sequence[str] | None = None, prog: str = "fastdeploy-lp serve") -> None:
    """Serves until a signal arrives; reports every option error in one line before the model loads."""
    with quick_imports():
        from fastdeploy_lp.entrypoints.openai.server import serve
    serve(argv, prog)


if __name__ == "__main__":
    main()
