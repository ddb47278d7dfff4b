"""Log-probabilities in the shapes of the chat completion and of /generate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..request import TokenLogprob
from ..tokens import token_text


def chat_logprobs(logprobs: Sequence[TokenLogprob] | None) -> dict[str, Any] | None:
    """A choice's `logprobs` object."""
    if not logprobs:
        return None
    return {
        "content": [
            _named(entry.logprob, entry.token)
            | {"top_logprobs": [_named(logprob, token) for logprob, token in entry.top]}
            for entry in logprobs
        ]
    }


def _named(logprob: float, token: int) -> dict[str, Any]:
    name = token_text(token)
    return {"token": name, "bytes": list(name.encode()), "logprob": logprob}


class GenerateLogprobs:
    """Lists of `[logprob, token id, text or null]` under SGLang's meta_info names, for input or output."""

    def __init__(self, side: str, *, with_top: bool, with_chosen: bool, with_text: bool) -> None:
        self._with_text = with_text
        self._tokens: list[Any] = []
        self._top: list[Any] = []
        self._chosen: list[Any] = []
        self.meta: dict[str, Any] = {f"{side}_token_logprobs": self._tokens}
        if with_top:
            self.meta[f"{side}_top_logprobs"] = self._top
        if with_chosen:
            self.meta[f"{side}_token_ids_logprobs"] = self._chosen

    def add(self, token: int, entry: TokenLogprob | None) -> None:
        """One position; None is the position before which nothing was scored."""
        self._tokens.append(self._triple(None if entry is None else entry.logprob, token))
        self._top.append(None if entry is None else [self._triple(*pair) for pair in entry.top])
        self._chosen.append(None if entry is None else [self._triple(*pair) for pair in entry.chosen])

    def __len__(self) -> int:
        return len(self._tokens)

    def _triple(self, logprob: float | None, token: int) -> list[Any]:
        return [logprob, token, token_text(token) if self._with_text else None]
