"""From an assembled answer back to the tokens that the engine emitted.

A router drops token ids, so they are recovered by rendering the answer with the model's own template, and the number of
tokens that the server counted (`usage.completion_tokens`) proves the result: same count, exact; fewer here than
counted, bytes were lost on the way; anything else, not recovered. Nothing is ever guessed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from pdwatch.correctness.lexicon import first_markup

MAXIMUM_CHARACTERS = 65_536
PREFIX_CHARACTERS = 4_096


class Tokenizer(Protocol):
    """The candidate's template and tokenizer, injected by the caller."""

    def prompt_ids(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> list[int]:
        """Token ids of the prompt, as the engine reads it."""
        ...

    def answer_ids(self, content: str | None, calls: Sequence[tuple[str, str]]) -> list[int] | None:
        """Token ids of an answer with its end token; `calls` are (name, arguments text). None: no exact form."""
        ...


@runtime_checkable
class TokenNames(Protocol):
    """What a tokenizer may offer beside: tokens in words, and the special tokens' markup."""

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """Markup as the server prints it in text, to the id it stands for."""
        ...

    def tokens_text(self, tokens: Sequence[int]) -> str:
        """Tokens as text: bytes decoded together, special tokens as their markup."""
        ...


@runtime_checkable
class AnswerForms(Protocol):
    """What a tokenizer may offer beside: the tokens of an answer that is not well formed."""

    def answer_forms(self, content: str | None, calls: Sequence[tuple[str, str]]) -> Sequence[Sequence[int]]:
        """All token sequences with an end token that the server's parser may have made this answer of."""
        ...


@dataclass(frozen=True, slots=True)
class Recovery:
    """Token ids of an answer.

    `exact`: they are all tokens the engine emitted. Otherwise `ids` is a prefix of them that is certain (it may be
    empty), and `reason` says why no more could be had. `lost_tokens` counts what the server counted and nobody
    received.
    """

    ids: tuple[int, ...]
    exact: bool
    reason: str | None = None
    lost_tokens: int = 0


def recover(
    tokenizer: Tokenizer,
    content: str,
    calls: Sequence[tuple[str, str]],
    completion_tokens: int | None,
    finish_reason: str | None,
) -> Recovery:
    """Token ids of an answer, or why they cannot be had.

    With `finish_reason` "length" the engine emitted no end token, so none is expected. `completion_tokens` None (the
    server counts nothing) leaves the rendering unproven, so it is not exact.
    """
    prefix = _certain_prefix(tokenizer, content, calls)
    length = len(content) + sum(len(name) + len(arguments) for name, arguments in calls)
    if length > MAXIMUM_CHARACTERS:
        return Recovery(prefix, False, f"the answer has {length} characters, more than {MAXIMUM_CHARACTERS}")
    if any("\ufffd" in text for text in (content, *(part for call in calls for part in call))):
        return Recovery(prefix, False, "a replacement character hides the bytes it stands for")
    if completion_tokens is None:
        return Recovery(prefix, False, "the server counted no completion tokens to check against")
    rendered = _render(tokenizer, content, calls)
    ended = finish_reason != "length"
    if rendered is not None and len(rendered) - (not ended) == completion_tokens:
        return Recovery(tuple(rendered if ended else rendered[:-1]), True)
    forms = (tuple(form if ended else form[:-1]) for form in _other_forms(tokenizer, content, calls, rendered))
    fitting = {form for form in forms if len(form) == completion_tokens}
    if len(fitting) == 1:
        return Recovery(fitting.pop(), True)
    if fitting:
        return Recovery(prefix, False, "several token sequences make this answer")
    if rendered is None:
        return Recovery(prefix, False, "the answer has no exact token form")
    lost = completion_tokens - (len(rendered) - (not ended))
    if lost > 0:
        return Recovery((), False, f"the server counted {lost} more tokens than were received", lost)
    return Recovery(prefix, False, f"the answer renders to {-lost} more tokens than the server counted")


def tokens_text(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    """Tokens in words: their text, or `#17 #4` where the tokenizer does not tell."""
    if isinstance(tokenizer, TokenNames):
        return tokenizer.tokens_text(tokens)
    return " ".join(f"#{token}" for token in tokens)


def _render(tokenizer: Tokenizer, content: str, calls: Sequence[tuple[str, str]]) -> list[int] | None:
    try:
        return tokenizer.answer_ids(content or None, calls)
    except (ValueError, RecursionError):
        # arguments nested too deep for the tokenizer's reader, or text without an encoding.
        return None


def _other_forms(
    tokenizer: Tokenizer, content: str, calls: Sequence[tuple[str, str]], rendered: list[int] | None
) -> Iterator[Sequence[int]]:
    """Token sequences, end token included, of an answer that does not render to as many tokens as were counted."""
    if rendered is not None:
        yield _with_specials(tokenizer, rendered)
    if isinstance(tokenizer, AnswerForms):
        yield from tokenizer.answer_forms(content or None, calls)


def _certain_prefix(tokenizer: Tokenizer, content: str, calls: Sequence[tuple[str, str]]) -> tuple[int, ...]:
    """Tokens of the text that stands before anything doubtful."""
    if calls or not content:
        return ()
    beginning = content[:PREFIX_CHARACTERS]
    doubtful = [first_markup(beginning), beginning.find("\ufffd")]
    end = min([position for position in doubtful if position is not None and position >= 0], default=len(beginning))
    rendered = _render(tokenizer, beginning[:end], ()) if end else None
    return () if rendered is None else tuple(rendered[:-1])


def _with_specials(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """The ids with each special token's spelled-out markup made that one token again."""
    if not isinstance(tokenizer, TokenNames):
        return list(ids)
    spellings = []
    for markup, token in tokenizer.special_tokens.items():
        rendered = tokenizer.answer_ids(markup, ())
        if rendered is not None and len(rendered) > 2:
            spellings.append((tuple(rendered[:-1]), token))
    collapsed: list[int] = []
    position = 0
    while position < len(ids):
        for spelling, token in spellings:
            if tuple(ids[position : position + len(spelling)]) == spelling:
                collapsed.append(token)
                position += len(spelling)
                break
        else:
            collapsed.append(ids[position])
            position += 1
    return collapsed
