"""From a response's bytes to the answer they spell.

The reading is lenient, as people's SDKs are; every place where the OpenAI specification would read otherwise is in
`defects`, and what it would read is `strict`. Nothing a server sends makes it raise.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .body import Body
from .calls import AssembledCall
from .defects import ProtocolDefect
from .lenient import LenientReader
from .quick import read_stream, read_stream_fully
from .sse import read_events
from .strict import StrictReading, read_strictly
from .texts import joined, parse
from .transcript import Transcript


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One event that held a JSON object, and when the read that completed it returned."""

    seconds: float
    payload: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Assembled:
    """An answer put together. None means that nothing of the kind arrived.

    `first_choice_seconds` is the first chunk with a choice (usually the role alone), `first_visible_seconds` the first
    with text or call output, `last_token_seconds` the last with either or with finish_reason; usage and [DONE] move
    none of them. `output_seconds` has one entry for each chunk with output or finish_reason, and
    `output_token_counts` as many, or none where no chunk told: the tokens that the chunk says it brings, -1 where it
    says nothing. `counted_seconds` and `counted_tokens` are the chunks with a choice and usage: when they came, and the
    completion tokens so far, also where a chunk brought nothing else.
    """

    body: Body = field(compare=False, repr=False)
    is_streamed: bool
    is_event_stream: bool
    is_done: bool
    response_id: str | None
    model: str | None
    role: str | None
    content: str | None
    reasoning: str | None
    refusal: str | None
    tool_calls: tuple[AssembledCall, ...]
    finish_reason: str | None
    usage: Mapping[str, Any] | None
    errors: tuple[str, ...]
    first_event_seconds: float | None
    first_choice_seconds: float | None
    first_choice_is_output: bool
    first_content_seconds: float | None
    first_reasoning_seconds: float | None
    first_call_seconds: float | None
    output_seconds: array[float]
    output_token_counts: array[int]
    counted_seconds: array[float]
    counted_tokens: array[int]
    defects: tuple[ProtocolDefect, ...]

    @property
    def events(self) -> tuple[StreamEvent, ...]:
        """Every event that held a JSON object; read anew at each call, since hardly anyone asks."""
        body = self.body
        if not self.is_event_stream:
            payload, _ = parse(body.data)
            return (StreamEvent(body.seconds[-1], payload),) if isinstance(payload, dict) else ()
        events, read = [], 0
        for event in read_events(body.data):
            while body.ends[read] < event.end:
                read += 1
            payload, _ = parse(event.data or b"")
            if isinstance(payload, dict):
                events.append(StreamEvent(body.seconds[read], payload))
        return tuple(events)

    @property
    def strict(self) -> StrictReading:
        """What the specification makes of the same bytes; the lenient reading where that departed nowhere."""
        if self.defects:
            return read_strictly(self.body, is_streamed=self.is_streamed)
        return StrictReading(None, self.content, self.refusal, self.tool_calls, self.finish_reason, self.usage)

    @property
    def first_visible_seconds(self) -> float | None:
        """Arrival of the first chunk with text, reasoning or call output."""
        firsts = (self.first_content_seconds, self.first_reasoning_seconds, self.first_call_seconds)
        return min((first for first in firsts if first is not None), default=None)

    @property
    def last_token_seconds(self) -> float | None:
        """Arrival of the last chunk with output or finish_reason."""
        return self.output_seconds[-1] if self.output_seconds else None

    def usage_count(self, name: str) -> int | None:
        """A count of `usage`, such as completion_tokens; None when it is missing or not a count."""
        value = (self.usage or {}).get(name)
        return value if type(value) is int and value >= 0 else None


def assemble(transcript: Transcript) -> Assembled:
    """Put a transcript's answer together."""
    return assemble_body(transcript.received, transcript.response_headers, is_streamed=transcript.is_streamed)


def assemble_chunks(
    chunks: Iterable[tuple[float, bytes]], response_headers: Mapping[str, str], *, is_streamed: bool = True
) -> Assembled:
    """Put an answer together from body bytes and the times they arrived at."""
    return assemble_body(Body.from_chunks(chunks), response_headers, is_streamed=is_streamed)


def assemble_body(
    body: Body, response_headers: Mapping[str, str], *, is_streamed: bool = True, is_quick: bool = True
) -> Assembled:
    """Put an answer together. `is_streamed`: the request asked for a stream; `is_quick` false takes no short cut."""
    reader = LenientReader()
    media_type = response_headers.get("content-type", "").partition(";")[0].strip().lower()
    is_document = body.data[:64].lstrip().startswith(b"{") or media_type == "application/json"
    if media_type != ("text/event-stream" if is_streamed else "application/json") or is_document == is_streamed:
        what = "a JSON document" if is_document else "no JSON document"
        code = "not_event_stream" if is_streamed else "not_json"
        reader.defects.add(code, "content-type is {} and the body " + what, media_type)
    if is_document:
        if body.data.strip():
            reader.whole(body.seconds[-1], body.data)
    elif is_quick:
        read_stream(body, reader)
    else:
        read_stream_fully(body, reader)
    reader.seal()
    if is_streamed and not reader.is_done:
        reader.defects.add("no_done")
    return _assembled(reader, body, is_streamed=is_streamed, is_event_stream=not is_document)


def _assembled(reader: LenientReader, body: Body, *, is_streamed: bool, is_event_stream: bool) -> Assembled:
    return Assembled(
        body=body,
        is_streamed=is_streamed,
        is_event_stream=is_event_stream,
        is_done=reader.is_done,
        response_id=reader.response_id,
        model=reader.model,
        role=reader.role,
        content=joined(reader.content) if reader.content else None,
        reasoning=joined(reader.reasoning) if reader.reasoning else None,
        refusal=joined(reader.refusal) if reader.refusal else None,
        tool_calls=reader.tool_calls,
        finish_reason=reader.finish_reason,
        usage=reader.usage,
        errors=tuple(reader.errors),
        first_event_seconds=reader.first_event_seconds,
        first_choice_seconds=reader.first_choice_seconds,
        first_choice_is_output=reader.first_choice_is_output,
        first_content_seconds=reader.first_content_seconds,
        first_reasoning_seconds=reader.first_reasoning_seconds,
        first_call_seconds=reader.first_call_seconds,
        output_seconds=reader.output_seconds,
        output_token_counts=reader.token_counts(),
        counted_seconds=reader.counted_seconds,
        counted_tokens=reader.counted_tokens,
        defects=reader.defects.sealed(),
    )
