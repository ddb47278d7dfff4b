"""Bytes of tool-call arguments are lost, but only when streaming."""

from __future__ import annotations

from pdwatch.stack.embedded.faults.base import Fault


class StreamArgumentsLost(Fault):
    """A fragment loses its last character, as when a parser's buffer is cut at the wrong place."""

    name = "stream_arguments_lost"
    where = "decode worker, HTTP server: arguments fragments of the event stream"
    signature = "lost_bytes"
    description = "some fragments of tool-call arguments lose a character on the streaming path"

    rate = 0.01

    def stream_fragment(self, fragment: str, batch: int) -> str:
        if batch > 1 and self.random.random() < self.rate:
            return fragment[:-1]
        return fragment
