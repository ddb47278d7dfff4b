"""The embedded model's vocabulary: 256 bytes and ten special tokens.

Text is UTF-8 bytes, so every string has exactly one tokenisation and re-tokenisation is exact by construction.
"""

from __future__ import annotations

from typing import Final

BOS: Final = 256
EOS: Final = 257
SYSTEM: Final = 258
USER: Final = 259
ASSISTANT: Final = 260
CALLS: Final = 261
CALL: Final = 262
ARGUMENT: Final = 263
END: Final = 264
PAD: Final = 265

SPECIAL_TEXT: Final[dict[int, str]] = {
    BOS: "<BOS>",
    EOS: "<EOS>",
    SYSTEM: "<SYS>",
    USER: "<USR>",
    ASSISTANT: "<AST>",
    CALLS: "<CALLS>",
    CALL: "<CALL>",
    ARGUMENT: "<ARG>",
    END: "<END>",
    PAD: "<PAD>",
}

# the embedding has room for a few more; ids from 266 on are never trained and never rendered.
VOCABULARY_SIZE: Final = 272


def is_special(token: int) -> bool:
    """True for every id that is not a byte of text."""
    return token >= 256


def token_text(token: int) -> str:
    """One token as text: a byte outside ASCII alone is U+FFFD, as SGLang prints partial UTF-8."""
    if token < 256:
        return bytes([token]).decode("utf-8", errors="replace")
    return SPECIAL_TEXT.get(token, f"<{token}>")
