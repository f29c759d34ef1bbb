"""Stands in for llama-server in tests of the comparison: answers with canned tokens, or fails as its model is named.

`dies.gguf` ends at once with an error, `never.gguf` is never healthy, `refuses.gguf` answers requests with an error,
any other serves. Request bodies go to `bodies.jsonl` beside the model, the id of a child that it leaves behind to
a file with the model's name and `.pid`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TOKENS = 7


class Handler(BaseHTTPRequestHandler):
    """What the load generator and the comparison ask for."""

    model: Path

    def do_GET(self) -> None:
        """Health and the list of models."""
        healthy = self.model.stem != "never"
        self._send(200 if healthy else 503, json.dumps({"data": [{"id": "stand-in"}]}).encode())

    def do_POST(self) -> None:
        """A chat completion of TOKENS tokens, streamed or whole."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with (self.model.parent / "bodies.jsonl").open("ab") as bodies:
            bodies.write(body + b"\n")
        if self.model.stem == "refuses":
            self._send(500, b"cannot decode /srv/models/refuses.gguf")
            return
        usage = {"prompt_tokens": 5, "completion_tokens": TOKENS}
        if not json.loads(body).get("stream"):
            message = {"message": {"role": "assistant", "content": "x" * TOKENS}}
            timings = {"draft_n": 4, "draft_n_accepted": 3}
            self._send(200, json.dumps({"choices": [message], "usage": usage, "timings": timings}).encode())
            return
        choice = {"index": 0, "delta": {"content": "x"}}
        chunks = [{"choices": [choice]}] * TOKENS + [{"choices": [], "usage": usage}]
        events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
        self._send(200, f"{events}data: [DONE]\n\n".encode())

    def log_message(self, *arguments: object) -> None:
        """Keep quiet."""

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    """Serve until a signal comes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--version", action="version", version="version: 1 (stand-in)")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--port", type=int)
    parser.add_argument("--log-verbosity", type=int, default=3)
    args, _ = parser.parse_known_args()
    if args.log_verbosity > 3:
        print("I system_info: n_threads = 2 | CPU : SSE3 = 1 | AVX2 = 1 | AVX512_VNNI = 1 | AMX_INT8 = 0 |")
        print("I load_tensors:   CPU_REPACK model buffer size =    12.25 MiB", flush=True)
    if args.model.stem == "dies":
        sys.exit(f"error: no tensors in {args.model}")
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    # Appears with its content: tests wait for the file.
    written = args.model.with_suffix(".new")
    written.write_text(str(child.pid))
    written.rename(args.model.with_suffix(".pid"))
    Handler.model = args.model
    Handler.protocol_version = "HTTP/1.1"
    ThreadingHTTPServer(("127.0.0.1", args.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
