"""`python -m fastdeploy_lp.engine.helpers.template_process SECONDS`: renders a chat template of a request, and ends.

The template affects only this process: it has no environment, cannot open files or sockets, and the kernel limits its
memory and CPU time. `TemplateSandbox` starts it.
"""

from __future__ import annotations

import contextlib
import json
import math
import resource
import sys
import time
from typing import Any

from fastdeploy_lp.engine.chat_template import ChatOptions, compiled
from fastdeploy_lp.engine.errors import InvalidRequestError
from fastdeploy_lp.request.limits import REQUEST_TEMPLATE_BYTES


def main() -> None:
    """Reads one job from standard input and writes one result to standard output, both JSON."""
    _load_what_is_loaded_late()
    _give_up_resources(float(sys.argv[1]))
    json.dump(_result(json.load(sys.stdin)), sys.stdout)


def _load_what_is_loaded_late() -> None:
    """Loads codecs, jinja's error reporting, its filler words and time formats, before opening files is disabled."""
    for source in ("{{ '\\u00e9' ~ strftime_now('%c') ~ lipsum(n=1) }}", "{{ nothing.at.all }}", "{% for %}"):
        with contextlib.suppress(InvalidRequestError):
            compiled(source, {}, "chat_template").render([])


def _give_up_resources(seconds: float) -> None:
    limits = {
        resource.RLIMIT_AS: REQUEST_TEMPLATE_BYTES,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NOFILE: 0,
        resource.RLIMIT_CORE: 0,
    }
    for kind, most in limits.items():
        resource.setrlimit(kind, (most, most))
    # The soft limit ends the process with SIGXCPU, which names the reason; the hard limit does not.
    cpu = math.ceil(time.process_time() + seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))


def _result(job: dict[str, Any]) -> dict[str, Any]:
    options = ChatOptions(**job["options"])
    try:
        template = compiled(options.chat_template or "", job["special_tokens"], "chat_template")
        return {"text": template.render(job["messages"], options)}
    except InvalidRequestError as error:
        return {"param": error.param, "reason": error.reason}
    except Exception as error:  # noqa: BLE001 - compiling computes what is constant, so anything can go wrong
        return {"param": "chat_template", "reason": f"the template does not compile: {type(error).__name__}"}


if __name__ == "__main__":
    main()
