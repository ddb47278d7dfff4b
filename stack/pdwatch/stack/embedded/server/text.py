"""Token ids to text, a character at a time."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from ..tokens import EOS, is_special, token_text


class PlainText:
    """Incremental UTF-8 text of tokens; special tokens are shown as markup or, as SGLang does, skipped."""

    def __init__(self, *, show_special: bool) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._show_special = show_special

    def feed(self, token_ids: Sequence[int]) -> str:
        """Text that these tokens complete."""
        return "".join(map(self._one, token_ids))

    def finish(self) -> str:
        """U+FFFD for a character that never became whole."""
        return self._utf8.decode(b"", final=True)

    def _one(self, token: int) -> str:
        if not is_special(token):
            return self._utf8.decode(bytes((token,)))
        return self.finish() + (token_text(token) if self._show_special and token != EOS else "")
