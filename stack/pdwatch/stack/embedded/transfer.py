"""KV transfer from prefill to decode: what both sides agree on (sender.py and receiver.py are the sides).

The decode side registers a room once it has pages for it; the prefill side runs the prompt, then sends a header and
the pages, one by one, over one kept TCP connection per pair of workers. Between two pages both sides yield to their
event loop, so a step or an abort can come in between, as with a real asynchronous transfer.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol

from .errors import TransferError
from .frames import FrameError
from .request import TokenLogprob

Address = tuple[str, int]

# rooms a decode worker may have open on one connection; far above any running limit, it only bounds hostile input.
MAXIMUM_ROOMS: Final = 16384
READ_LIMIT_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Layout:
    """What both ends must agree on before bytes may be copied between their pools."""

    fingerprint: str
    page_bytes: int


@dataclass(frozen=True, slots=True)
class TransferHeader:
    """What the decode side needs besides the pages: prompt length, first token, tokens the prefix cache gave."""

    tokens: int
    pages: int
    first_token: int
    first_logprob: TokenLogprob | None
    cached_tokens: int

    def to_json(self) -> dict[str, Any]:
        """Plain values for the HEADER frame."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> TransferHeader:
        """The header of a HEADER frame. Raises FrameError when a field is missing or not what it should be."""
        try:
            counts = {name: value[name] for name in ("tokens", "pages", "first_token", "cached_tokens")}
            if not all(type(count) is int and 0 <= count < 1 << 31 for count in counts.values()):
                raise TypeError
            return cls(first_logprob=_token_logprob(value["first_logprob"]), **counts)
        except (KeyError, TypeError, ValueError, OverflowError):
            raise FrameError(f"not a transfer header: {str(value)[:200]}") from None


def _token_logprob(value: Any) -> TokenLogprob | None:
    if value is None:
        return None
    pairs = {name: tuple((float(logprob), int(token)) for logprob, token in value[name]) for name in ("top", "chosen")}
    return TokenLogprob(token=int(value["token"]), logprob=float(value["logprob"]), **pairs)


class PageSource(Protocol):
    """KV of one finished prompt (the engine's KvSource)."""

    @property
    def pages(self) -> int:
        """Number of pages."""

    def read(self, page_index: int) -> bytes:
        """The bytes of one page."""


class PageSink(Protocol):
    """Where the decode side puts what arrives; either call raises TransferError to refuse it."""

    def begin(self, header: TransferHeader) -> None:
        """The header has come; no page before it."""

    def write_page(self, page_index: int, page: bytes) -> None:
        """One checked page."""


@dataclass(frozen=True, slots=True)
class TransferReport:
    """A finished transfer as the sender saw it."""

    total_bytes: int
    seconds: float


class RoomAbandoned(TransferError):
    """The other side gave the room up: no more bytes of it come."""


class RoomInUse(TransferError):
    """Another request has the room."""


async def write_frame(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Write one frame and wait while the peer is slow. Raises OSError when the connection is gone."""
    if writer.is_closing():
        raise ConnectionResetError("connection closed")
    writer.write(data)
    await writer.drain()
