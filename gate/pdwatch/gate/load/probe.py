"""Who the server is, asked before any load is sent."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pdwatch.gate.asking import INFO_PATHS, Refused, Unanswered, authorization, get_json, is_sglang_info, served_models
from pdwatch.gate.errors import NoModelList, OptionError
from pdwatch.gate.load.options import LoadOptions


@dataclass(frozen=True, slots=True)
class Server:
    """The model to ask for, and the dialect with how it is known; `models` are all that are served."""

    model: str
    models: tuple[str, ...]
    dialect: Literal["sglang", "openai"]
    dialect_reason: str


def probe(options: LoadOptions) -> Server:
    """Ask for models and dialect. Raises TargetError when nobody, or no model server, answers."""
    headers, tls = authorization(options.bearer_token_environment), _tls(options)
    try:
        models = served_models(options.url, headers, tls)
    except NoModelList:
        # whoever names the model needs no list of them.
        if options.model is None:
            raise
        models = ()
    dialect, reason = _dialect(options, headers, tls)
    return Server(options.model or models[0], models, dialect, reason)


def _dialect(
    options: LoadOptions, headers: Mapping[str, str], tls: ssl.SSLContext | None
) -> tuple[Literal["sglang", "openai"], str]:
    if options.dialect != "auto":
        return options.dialect, "as asked"
    others = []
    for path in INFO_PATHS:
        try:
            answer = get_json(options.url, path, headers, tls)
        except (Unanswered, Refused, ValueError):
            continue
        if is_sglang_info(answer):
            return "sglang", f"{path} shows SGLang's settings"
        others.append(path)
    if others:
        return "openai", f"{others[0]} answers, but not as SGLang does"
    return "openai", f"it answers none of {', '.join(INFO_PATHS)}"


def _tls(options: LoadOptions) -> ssl.SSLContext | None:
    """How the server's certificate is checked; None for the system's way."""
    if options.insecure:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    if options.ca_file is None:
        return None
    try:
        return ssl.create_default_context(cafile=str(options.ca_file))
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise OptionError(f"--ca-file `{options.ca_file}` holds no certificates ({reason}): give a PEM file") from error
