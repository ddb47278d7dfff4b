"""Who the server is, asked before any load is sent."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Literal

import httpx

from pdwatch.gate.errors import NoModelList, OptionError
from pdwatch.gate.load.options import LoadOptions
from pdwatch.gate.preflight import INFO_PATHS, TIMEOUT_SECONDS, authorization, get_json, served_models


@dataclass(frozen=True, slots=True)
class Server:
    """The model to ask for, and the dialect with how it is known; `models` are all that are served."""

    model: str
    models: tuple[str, ...]
    dialect: Literal["sglang", "openai"]
    dialect_reason: str


def probe(options: LoadOptions) -> Server:
    """Ask for models and dialect. Raises TargetError when nobody, or no model server, answers."""
    headers = authorization(options.bearer_token_environment)
    with httpx.Client(timeout=TIMEOUT_SECONDS, headers=headers, trust_env=False, verify=_tls(options)) as client:
        try:
            models = served_models(client, options.url)
        except NoModelList:
            # whoever names the model needs no list of them.
            if options.model is None:
                raise
            models = ()
        dialect, reason = _dialect(client, options)
    return Server(options.model or models[0], models, dialect, reason)


def _dialect(client: httpx.Client, options: LoadOptions) -> tuple[Literal["sglang", "openai"], str]:
    if options.dialect != "auto":
        return options.dialect, "as asked"
    base = options.url.rstrip("/").removesuffix("/v1")
    for path in INFO_PATHS:
        try:
            if isinstance(get_json(client, base + path), dict):
                return "sglang", f"it answers {path}"
        except (httpx.HTTPError, httpx.InvalidURL, ValueError):
            continue
    return "openai", f"it answers none of {', '.join(INFO_PATHS)}"


def _tls(options: LoadOptions) -> ssl.SSLContext | bool:
    if options.insecure:
        return False
    if options.ca_file is None:
        return True
    try:
        return ssl.create_default_context(cafile=str(options.ca_file))
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise OptionError(f"--ca-file `{options.ca_file}` holds no certificates ({reason}): give a PEM file") from error
