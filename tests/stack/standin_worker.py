"""A worker that only answers /health, for tests of the processes around it.

STANDIN in the environment holds ``{"<worker name>": {...}}``; keys: ``exit_code`` and ``line`` (log the line and exit
at once), ``silent`` (never listen).
"""

from __future__ import annotations

import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"{}"
        self.send_response(200 if self.path in ("/health", "/server_info", "/model_info") else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        return


def main() -> None:
    config = json.loads(Path(sys.argv[sys.argv.index("--config") + 1]).read_text(encoding="utf-8"))
    behaviour = json.loads(os.environ.get("STANDIN", "{}")).get(config["name"], {})
    if "exit_code" in behaviour:
        print(behaviour["line"], file=sys.stderr)
        sys.exit(behaviour["exit_code"])
    if behaviour.get("silent"):
        signal.pause()
    ThreadingHTTPServer((config["host"], config["port"]), Handler).serve_forever()


if __name__ == "__main__":
    main()
