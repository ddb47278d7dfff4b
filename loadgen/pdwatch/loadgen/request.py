"""What is sent, byte for byte, and whether the client will go away from it."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from .target import Target


@dataclass(frozen=True, slots=True)
class Cancel:
    """When the client disconnects: so long after sending, or after so many reads of the response.

    `after_wait_share` is a time that depends on the load: this share of what the client last waited for an answer to
    begin. `timed` turns it into `after_seconds`.
    """

    after_seconds: float | None = None
    after_wait_share: float | None = None
    after_reads: int | None = None

    def timed(self, wait_seconds: float) -> Cancel:
        """The same with a share of the wait as seconds."""
        if self.after_wait_share is None:
            return self
        return Cancel(after_seconds=self.after_wait_share * wait_seconds)


def post_request(
    target: Target, path: str, request_id: str, body: bytes, is_streamed: bool, bearer_token: str | None
) -> bytes:
    """A POST of JSON, whole."""
    head = (
        f"POST {target.prefix}{path} HTTP/1.1\r\n"
        f"Host: {target.authority}\r\n"
        f"{_authorization(bearer_token)}"
        "Content-Type: application/json\r\n"
        f"Accept: {'text/event-stream' if is_streamed else 'application/json'}\r\n"
        f"X-Request-ID: {request_id}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode("ascii") + body


def get_request(target: Target, path: str, bearer_token: str | None) -> bytes:
    """A GET request, whole."""
    head = (
        f"GET {target.prefix}{path} HTTP/1.1\r\n"
        f"Host: {target.authority}\r\n"
        f"{_authorization(bearer_token)}"
        "Accept: application/json\r\n\r\n"
    )
    return head.encode("ascii")


def cancel_for(seed: int, number: int, rate: float) -> Cancel | None:
    """Whether and when the client gives up on task `number`; the same for a seed in every arm.

    Three of four go before the answer begins, most of them late in that wait, while the prompt is computed or its KV is
    sent: that is where an abort does harm. The others go after the first one to eight reads, while decode is under way.
    """
    source = Random(f"{seed}/cancel/{number}")
    if source.random() >= rate:
        return None
    if source.random() < 0.75:
        return Cancel(after_wait_share=source.triangular(0.1, 1.1, 0.9))
    return Cancel(after_reads=source.randint(1, 8))


def _authorization(bearer_token: str | None) -> str:
    return f"Authorization: Bearer {bearer_token}\r\n" if bearer_token is not None else ""
