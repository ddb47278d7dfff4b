"""Token forms of an answer that is not well formed: the inverse of the parser for what the model was never taught to
write."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from .tokens import ARGUMENT, CALL, CALLS, END, EOS, SPECIAL_TEXT

_MARKUP: Final = {text: token for token, text in SPECIAL_TEXT.items()}
_SPLIT: Final = re.compile("(" + "|".join(map(re.escape, _MARKUP)) + ")")
_FIELD: Final = re.compile(r'(?:^\{|, )("(?:[^"\\]|\\.)*"): ')


def answer_forms(content: str | None, calls: Sequence[tuple[str, str]]) -> list[list[int]]:
    """Token sequences, EOS included, that the parser turns into this answer, markup taken for special tokens.

    Text before and text after the calls read the same, and so do text alone and text behind a lone CALLS. The number of
    tokens that the server counted tells them apart, or nothing does.
    """
    text = _tokens(content or "")
    body = [token for name, arguments in calls for token in _call(name, arguments)]
    if not calls:
        forms = [text, [CALLS, *text]]
    elif not text:
        forms = [[CALLS, *body]]
    else:
        forms = [[*text, CALLS, *body], [CALLS, *body, *text]]
    return [[*form, EOS] for form in forms]


def _call(name: str, arguments: str) -> list[int]:
    tokens = [CALL, *_tokens(name)]
    closed = arguments.endswith("}")
    fields = list(_FIELD.finditer(arguments))
    bounds = [*((field.start(), field) for field in fields), (len(arguments) - closed, None)]
    for (_, field), (end, _) in pairwise(bounds):
        if field is not None:
            label = _tokens(json.loads(field[1], strict=False))
            tokens += [ARGUMENT, *label, ord("="), *_tokens(arguments[field.end() : end])]
    return [*tokens, END] if closed else tokens


def _tokens(text: str) -> list[int]:
    return [
        token
        for part in _SPLIT.split(text)
        for token in ([_MARKUP[part]] if part in _MARKUP else part.encode("utf-8", errors="surrogateescape"))
    ]
