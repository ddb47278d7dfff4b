"""The embedded model's template as the judge wants it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pdwatch.stack.embedded.forms import answer_forms
from pdwatch.stack.embedded.template import render_answer, render_prompt
from pdwatch.stack.embedded.tokens import SPECIAL_TEXT, is_special, token_text


class EmbeddedTokenizer:
    """Renders prompts and answers of the embedded model to the token ids that its engine reads and emits."""

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """Markup as the server prints it, to the id it stands for."""
        return {text: token for token, text in SPECIAL_TEXT.items()}

    def prompt_ids(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> list[int]:
        """Token ids of the prompt. Raises TemplateError, a ValueError."""
        return render_prompt(messages, tools)

    def answer_ids(self, content: str | None, calls: Sequence[tuple[str, str]]) -> list[int] | None:
        """Token ids of an answer with its end token; None when it has no exact form."""
        return render_answer(content, calls)

    def answer_forms(self, content: str | None, calls: Sequence[tuple[str, str]]) -> list[list[int]]:
        """All token sequences that the parser may have made an answer of that is not well formed."""
        return answer_forms(content, calls)

    def tokens_text(self, tokens: Sequence[int]) -> str:
        """Tokens as text, bytes that are no UTF-8 as U+FFFD and special tokens as their markup."""
        pieces: list[str] = []
        run = bytearray()
        for token in tokens:
            if not is_special(token):
                run.append(token)
                continue
            pieces += [run.decode("utf-8", errors="replace"), token_text(token)]
            run.clear()
        return "".join([*pieces, run.decode("utf-8", errors="replace")])
