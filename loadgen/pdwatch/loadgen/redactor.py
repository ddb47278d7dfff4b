"""Keeps secrets out of what is recorded: the bearer token wherever a server echoes it, and headers that open doors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Final
from urllib.parse import quote

from .framing import Response

REDACTED: Final = "[redacted]"

# a shorter one is no secret, and would be found in innocent words.
_LEAST_SECRET: Final = 6

# parts of the names of headers that hold credentials; they tell nothing about an answer.
_SECRET_PARTS: Final = ("authorization", "authenticate", "cookie", "api-key", "apikey", "auth-token", "access-token")


class Redactor:
    """Replaces one token, None where there is none; also as JSON and URLs spell it."""

    def __init__(self, token: str | None) -> None:
        self._spellings: list[str] = []
        if token is not None and len(token) >= _LEAST_SECRET:
            in_json = json.dumps(token)[1:-1]
            spellings = {token, in_json, in_json.replace("/", "\\/"), quote(token), quote(token, safe="")}
            # a longer one first: it may hold a shorter one.
            self._spellings = sorted(spellings, key=len, reverse=True)

    def text(self, text: str) -> str:
        """A text with the token as [redacted]."""
        for spelling in self._spellings:
            text = text.replace(spelling, REDACTED)
        return text

    def headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Headers, names in lower case, without those that hold credentials."""
        return {name: self.text(value) for name, value in headers.items() if not is_secret_header(name)}

    def response(self, response: Response) -> Response:
        """A response with the token as asterisks in its body, whose length stays, and its headers as `headers`."""
        data = response.body.data
        for spelling in self._spellings:
            data = data.replace(spelling.encode(), b"*" * len(spelling))
        body = response.body if data is response.body.data else replace(response.body, data=data)
        error = None if response.error is None else self.text(response.error)
        return replace(response, headers=self.headers(response.headers), body=body, error=error)


def is_secret_header(name: str) -> bool:
    """Whether a header, its name in lower case, holds credentials."""
    return any(part in name for part in _SECRET_PARTS)
