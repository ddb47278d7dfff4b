"""One worker process: `python -m pdwatch.stack.embedded.worker --config FILE.json`.

Exit 0 after SIGTERM or SIGINT, 1 when the engine fails, 3 when it cannot start (one line on stderr says why).
"""

from __future__ import annotations

import argparse
import logging
import socket
import sys
import time
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from .config import EngineConfig, Role
from .errors import EngineError

EXIT_FAILED: Final = 1
EXIT_CANNOT_START: Final = 3
_BACKLOG: Final = 2048


class CannotStart(Exception):
    """The worker cannot start; the message is the one line for stderr."""


class WorkerConfig(BaseModel):
    """Configuration of one worker. Port 0 takes a free port, which only suits tests.

    `eager` makes the reference: one request at a time, nothing captured or overlapped, eager kernels.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    role: Role
    host: str = "127.0.0.1"
    port: int = Field(ge=0, le=65535)
    bootstrap_port: int | None = Field(default=None, ge=0, le=65535)
    transfer_port: int = Field(default=0, ge=0, le=65535)
    engine: EngineConfig
    weights: Path
    served_model_name: str = "tiny-toolcaller"
    eager: bool = False
    room_timeout_seconds: float = Field(default=300.0, gt=0)

    @model_validator(mode="before")
    @classmethod
    def _engine_follows(cls, value: Any) -> Any:
        """The engine takes its role from the worker, and from `eager` what that word means."""
        if not isinstance(value, dict) or not isinstance(value.get("engine", {}), dict):
            return value
        engine = {"role": value.get("role", "unified")} | value.get("engine", {})
        if value.get("eager"):
            engine |= {"capture": False, "multi_stream_overlap": "off", "kernels": "eager", "max_running_requests": 1}
        return value | {"engine": engine}

    @model_validator(mode="after")
    def _consistent(self) -> WorkerConfig:
        if self.engine.role != self.role:
            raise ValueError(f"engine.role is {self.engine.role} but role is {self.role}: leave engine.role out")
        if self.role == "prefill" and self.bootstrap_port is None:
            raise ValueError("a prefill worker needs bootstrap_port")
        return self

    def with_kernels(self, name: str) -> WorkerConfig:
        """The same worker with other kernels. Raises CannotStart for the reference, whose kernels are eager."""
        if self.eager:
            raise CannotStart(f"{self.name} is the eager reference, kernels {name} are not for it: leave --kernels out")
        return self.model_copy(update={"engine": self.engine.model_copy(update={"kernels": name})})


def read_config(path: Path) -> WorkerConfig:
    """The configuration in a JSON file. Raises CannotStart."""
    try:
        return WorkerConfig.model_validate_json(path.read_bytes())
    except OSError as error:
        raise CannotStart(f"cannot read the configuration {path}: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise CannotStart(f"configuration {path}: {where}: {first['msg']}, got {str(first['input'])[:120]}") from None


def bind(host: str, port: int, what: str) -> socket.socket:
    """A listening socket. Raises CannotStart when the address cannot be had."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        # a port that another worker's closed connections still linger on may be taken over at once.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise CannotStart(f"{what}: cannot listen on {host}:{port}: {error.strerror}; choose another port") from None
    return listener


def main(arguments: list[str] | None = None) -> int:
    """Run one worker; returns its exit code."""
    started = time.perf_counter()
    parser = argparse.ArgumentParser(prog="pdwatch.stack.embedded.worker", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="JSON file, see WorkerConfig")
    parser.add_argument("--kernels", metavar="NAME", help="kernels instead of the configured ones: eager or triton")
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        options = parser.parse_args(arguments)
        config = read_config(options.config)
        if options.kernels is not None:
            config = config.with_kernels(options.kernels)
        # all ports before the weights: a port in use is told in a moment.
        listeners = {"port": bind(config.host, config.port, "port")}
        if config.bootstrap_port is not None and config.role == "prefill":
            listeners["bootstrap_port"] = bind(config.host, config.bootstrap_port, "bootstrap_port")
            listeners["transfer_port"] = bind(config.host, config.transfer_port, "transfer_port")
        # the engine brings torch, which takes seconds to import.
        from .server.process import serve

        serve(config, listeners, started)
    except (CannotStart, EngineError) as error:
        print(f"worker: {error}", file=sys.stderr)
        return EXIT_CANNOT_START
    except Exception:
        logging.getLogger(__name__).critical("the engine failed", exc_info=True)
        return EXIT_FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
