"""`python -m fastdeploy_lp.worker`: the worker process, started by the API process and told what to do on stdin."""

import contextlib
import importlib
import io
import warnings


def _import_paddle() -> None:
    """Paddle greets with advice about thread counts and compiler caches that does not concern whoever reads our log."""
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        importlib.import_module("paddle")


if __name__ == "__main__":
    _import_paddle()
    from fastdeploy_lp.worker.process import main

    main()
