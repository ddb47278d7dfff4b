"""What a server says it serves, and whether a reference serves the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import httpx
import orjson

from pdwatch.correctness.errors import ReferenceMismatch, ReferenceUnavailable
from pdwatch.correctness.excerpt import excerpt

MAXIMUM_BYTES = 4 * 2**20

# a field counts only where both servers tell it. The paths of weights and tokenizer may differ between machines, so a
# hash of the same thing, where told, decides instead.
IDENTITY: tuple[str, ...] = (
    "weights_sha256",
    "model_path",
    "weight_version",
    "revision",
    "model_type",
    "architectures",
    "tokenizer_sha256",
    "tokenizer_path",
    "chat_template_sha256",
    "chat_template",
)
_DECIDED_BY: dict[str, str] = {
    "model_path": "weights_sha256",
    "tokenizer_path": "tokenizer_sha256",
    "chat_template": "chat_template_sha256",
}


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """A server's own words about itself: /server_info and /model_info merged where it matters, and whole."""

    url: str
    version: str | None
    identity: Mapping[str, Any]
    server_info: Mapping[str, Any]
    model_info: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class FactMismatch:
    """A field on which two servers differ."""

    field: str
    reference: Any
    candidate: Any


def read_facts(client: httpx.Client, url: str) -> EngineFacts:
    """Ask a server about itself. Raises ReferenceUnavailable when it does not tell."""
    server_info = _get(client, f"{url}/server_info")
    model_info = _get(client, f"{url}/model_info")
    merged = {**server_info, **model_info}
    identity = {name: merged[name] for name in IDENTITY if merged.get(name) is not None}
    version = server_info.get("version")
    return EngineFacts(url, None if version is None else str(version), identity, server_info, model_info)


def mismatches(reference: Mapping[str, Any], candidate: Mapping[str, Any]) -> tuple[FactMismatch, ...]:
    """The identity fields on which two servers differ, as far as both tell them."""
    shared = [name for name in IDENTITY if name in reference and name in candidate]
    return tuple(
        FactMismatch(name, reference[name], candidate[name])
        for name in shared
        if reference[name] != candidate[name] and _DECIDED_BY.get(name) not in shared
    )


def refuse_mismatch(reference: EngineFacts, candidate: Mapping[str, Any], whose: str) -> None:
    """Raises ReferenceMismatch, naming the differing fields, unless both serve the same."""
    differing = mismatches(reference.identity, candidate)
    if differing:
        fields = "; ".join(
            f"{item.field} is {_shown(item.reference)} there and {_shown(item.candidate)} in {whose}"
            for item in differing
        )
        raise ReferenceMismatch(
            f"the reference {reference.url} serves something else: {fields}."
            " Start it from the same weights and template",
            tuple(item.field for item in differing),
        )


def _shown(value: Any) -> str:
    return excerpt(str(value), 80)


def _get(client: httpx.Client, url: str) -> dict[str, Any]:
    try:
        with client.stream("GET", url) as response:
            body = read_limited(response, MAXIMUM_BYTES)
    except httpx.HTTPError as error:
        raise ReferenceUnavailable(f"{url} does not answer ({error}): start it or check the address") from error
    if response.status_code != 200:
        raise ReferenceUnavailable(f"{url} answers HTTP {response.status_code}: an SGLang server answers 200")
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ReferenceUnavailable(f"{url} answers no JSON ({excerpt(str(error))}): is it an SGLang server?") from error
    if not isinstance(value, dict):
        raise ReferenceUnavailable(f"{url} answers {type(value).__name__}, not an object: is it an SGLang server?")
    return value


def read_limited(response: httpx.Response, maximum_bytes: int) -> bytes:
    """The body of a streamed response. Raises ReferenceUnavailable past `maximum_bytes`, before reading further."""
    parts: list[bytes] = []
    size = 0
    for part in response.iter_bytes():
        size += len(part)
        if size > maximum_bytes:
            raise ReferenceUnavailable(f"{response.url} answers with over {maximum_bytes} bytes: no reference does")
        parts.append(part)
    return b"".join(parts)
