"""How many requests were really decoded together, the proof that a level was what it says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pdwatch.gate.rows import RequestRow
from pdwatch.gate.server_samples import ServerSamples

_RUNNING = "sglang:num_running_reqs"


def running_batches(rows: Sequence[RequestRow], samples: ServerSamples) -> dict[tuple[str, int], int]:
    """Largest decode batch by (arm, level), while measured requests of that arm and level were in flight.

    The larger of what a decode worker told (sampled once a second, so short peaks are missed) and of the answers that
    were streaming at one time, spread over the decode workers as far as these are known: so many shared one of them.
    """
    batches: dict[tuple[str, int], int] = {}
    spans: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for row in rows:
        if row.measured:
            spans.setdefault((row.arm, row.level), []).append((row.sent_seconds, row.ended_seconds))
    for (arm, level), sent in spans.items():
        line = samples.largest(arm, "decode", _RUNNING)
        workers = max(1, sum((server.arm, server.role) == (arm, "decode") for server in samples.servers))
        inside = [
            value
            for second, value in zip(line.seconds, line.values, strict=True)
            if any(start <= second <= end for start, end in sent)
        ]
        streaming = (
            (row.first_token_seconds, row.ended_seconds)
            for row in rows
            if (row.arm, row.level) == (arm, level) and row.measured and row.first_token_seconds is not None
        )
        batches[arm, level] = max([int(value) for value in inside] + [-(-overlap(streaming) // workers)])
    return batches


def overlap(spans: Iterable[tuple[float, float]]) -> int:
    """The largest number of spans that share an instant; an end and a beginning at one instant do not."""
    changes = sorted(change for start, end in spans if end > start for change in ((start, 1), (end, -1)))
    largest = current = 0
    for _, step in changes:
        current += step
        largest = max(largest, current)
    return largest
