"""The score journal `reference.jsonl.zst`: what the reference said, kept so that a judgement can be redone without it.

One zstd frame per record, appended; `zstdcat` shows it as JSON lines. The first record holds the reference's facts.
A frame cut by a kill at the end is dropped when the journal is opened again.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Final, Self

import orjson
import zstandard

from pdwatch.correctness.errors import JournalError
from pdwatch.correctness.own_answer import OwnAnswer
from pdwatch.correctness.score import AnswerScore, PositionScore

JOURNAL_NAME: Final = "reference.jsonl.zst"
LARGEST_RECORD_BYTES: Final = 64 * 2**20

_BLOCK_BYTES: Final = 32 * 1024
_LEVEL: Final = 3


def score_key(prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> str:
    """Identity of a scoring: SHA-256 over both token sequences, hexadecimal."""
    digest = hashlib.sha256(array("q", [len(prompt_ids)]).tobytes())
    digest.update(array("q", prompt_ids).tobytes())
    digest.update(array("q", answer_ids).tobytes())
    return digest.hexdigest()


class ScoreJournal:
    """Scores and the reference's own answers on disk, found by key.

    Safe to use from several threads; one process writes.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        """Opens or creates the journal. Raises JournalError when the file is none, OSError."""
        flags = os.O_RDONLY if read_only else os.O_RDWR | os.O_CREAT | os.O_APPEND
        self.path = path
        self.facts: Mapping[str, Any] | None = None
        self._descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
        self._lock = Lock()
        self._frames: dict[str, tuple[int, int]] = {}
        self._end = 0
        try:
            self._index()
            if not read_only:
                os.ftruncate(self._descriptor, self._end)
        except BaseException:
            os.close(self._descriptor)
            raise

    def __len__(self) -> int:
        return len(self._frames)

    def write_facts(self, facts: Mapping[str, Any]) -> None:
        """Record whose scores these are; only the first call of a new journal writes."""
        with self._lock:
            if self.facts is None:
                self._append(orjson.dumps({"reference": dict(facts)}))
                self.facts = dict(facts)

    def get(self, key: str) -> AnswerScore | None:
        """A stored score, None when there is none."""
        record = self._read(key)
        return None if record is None else _score(record)

    def get_answer(self, key: str) -> OwnAnswer | None:
        """A stored answer of the reference's own, None when there is none."""
        record = self._read(key)
        return None if record is None else _own_answer(record)

    def put(self, key: str, prompt_tokens: int, score: AnswerScore) -> None:
        """Store a score; one that is stored already stays."""
        line = orjson.dumps(
            {
                "key": key,
                "prompt_tokens": prompt_tokens,
                "tokens": [position.token for position in score.positions],
                "logprobs": [position.logprob for position in score.positions],
                "top_tokens": [[token for token, _ in position.top] for position in score.positions],
                "top_logprobs": [[logprob for _, logprob in position.top] for position in score.positions],
            }
        )
        self._write(key, line)

    def put_answer(self, key: str, answer: OwnAnswer) -> None:
        """Store an answer; one that is stored already stays."""
        calls = [{"name": name, "arguments": text} for name, text in answer.calls]
        record = {"key": key, "content": answer.content, "calls": calls, "margin_nats": answer.margin_nats}
        self._write(key, orjson.dumps(record))

    def close(self) -> None:
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self, key: str) -> Any:
        with self._lock:
            frame = self._frames.get(key)
        if frame is None:
            return None
        data = os.pread(self._descriptor, frame[1], frame[0])
        return orjson.loads(zstandard.ZstdDecompressor().decompress(data, LARGEST_RECORD_BYTES))

    def _write(self, key: str, line: bytes) -> None:
        with self._lock:
            if key not in self._frames:
                self._frames[key] = self._append(line)

    def _append(self, line: bytes) -> tuple[int, int]:
        frame = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compress(line + b"\n")
        start = self._end
        written = 0
        while written < len(frame):
            written += os.write(self._descriptor, frame[written:])
        self._end += len(frame)
        return start, len(frame)

    def _index(self) -> None:
        for start, length, line in self._scan():
            try:
                record = orjson.loads(line)
                if "reference" in record:
                    self.facts = self.facts or record["reference"]
                else:
                    self._frames[record["key"]] = (start, length)
            except (ValueError, KeyError, TypeError) as error:
                raise JournalError(f"{self.path} holds no score at byte {start}: remove it and score again") from error

    def _scan(self) -> Iterator[tuple[int, int, bytes]]:
        """Every whole frame as (first byte, length, text); stops before a frame that the file's end cuts."""
        while True:
            stream = zstandard.ZstdDecompressor().decompressobj()
            parts: list[bytes] = []
            size = 0
            fed = self._end
            while not stream.eof:
                block = os.pread(self._descriptor, _BLOCK_BYTES, fed)
                if not block:
                    return
                try:
                    parts.append(stream.decompress(block))
                except zstandard.ZstdError as error:
                    raise JournalError(
                        f"{self.path} is damaged at byte {self._end} ({error}): remove it and score again"
                    ) from error
                fed += len(block)
                size += len(parts[-1])
                if size > LARGEST_RECORD_BYTES:
                    raise JournalError(f"{self.path} holds a record over {LARGEST_RECORD_BYTES} bytes: not a journal")
            length = fed - len(stream.unused_data) - self._end
            yield self._end, length, b"".join(parts)
            self._end += length


def _score(record: Mapping[str, Any]) -> AnswerScore:
    rows = zip(record["tokens"], record["logprobs"], record["top_tokens"], record["top_logprobs"], strict=True)
    return AnswerScore(
        tuple(
            PositionScore(token, logprob, tuple(zip(tokens, logprobs, strict=True)))
            for token, logprob, tokens, logprobs in rows
        )
    )


def _own_answer(record: Mapping[str, Any]) -> OwnAnswer:
    calls = tuple((call["name"], call["arguments"]) for call in record["calls"])
    return OwnAnswer(record["content"], calls, record["margin_nats"])
