"""The derived tables: one row per request, one row per metric sample. Both are replaced as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from pdwatch.gate.atomic import write_atomically
from pdwatch.gate.rows import RequestRow
from pdwatch.gate.server_samples import ServerSamples

_TEXT = pa.string()
_LABEL = pa.dictionary(pa.int32(), pa.string())
_SECONDS = pa.float64()
_COUNT = pa.int64()

REQUESTS_SCHEMA = pa.schema(
    [
        ("request_id", _TEXT),
        ("arm", _LABEL),
        ("level", _COUNT),
        ("phase", _COUNT),
        ("label", _LABEL),
        ("user", _COUNT),
        ("number", _COUNT),
        ("family", _LABEL),
        ("outcome", _LABEL),
        ("signature", _LABEL),
        ("transport", _LABEL),
        ("transport_detail", _TEXT),
        ("status", _COUNT),
        ("finish_reason", _LABEL),
        ("sent_seconds", _SECONDS),
        ("first_token_seconds", _SECONDS),
        ("ended_seconds", _SECONDS),
        ("time_to_first_token_seconds", _SECONDS),
        ("time_per_output_token_seconds", _SECONDS),
        ("end_to_end_seconds", _SECONDS),
        ("output_tokens", _COUNT),
        ("prompt_tokens", _COUNT),
        ("cached_tokens", _COUNT),
        ("sent_bytes", _COUNT),
        ("received_bytes", _COUNT),
        ("unscored_reason", _TEXT),
        ("findings", _TEXT),
        ("difference", _TEXT),
        ("divergence", _TEXT),
        ("top_tokens", _TEXT),
    ]
)


def write_requests_table(path: Path, rows: Sequence[RequestRow]) -> None:
    """Write `requests.parquet`; nested evidence is JSON text."""
    records = [_record(row) for row in rows]
    columns = [pa.array([record[field.name] for record in records], type=field.type) for field in REQUESTS_SCHEMA]
    _write(path, pa.table(columns, schema=REQUESTS_SCHEMA))


def write_server_table(path: Path, samples: ServerSamples) -> None:
    """Write `server.parquet`: time, server, series and value of every sample. `labels` is JSON text."""
    labels = [orjson.dumps(dict(series.labels)).decode() for series in samples.series]
    table = pa.table(
        {
            "seconds": samples.seconds,
            "unix_seconds": samples.unix_seconds,
            "server": _coded(samples.server_index, [server.name for server in samples.servers]),
            "arm": _coded(samples.server_index, [server.arm for server in samples.servers]),
            "role": _coded(samples.server_index, [server.role for server in samples.servers]),
            "name": _coded(samples.series_index, [series.name for series in samples.series]),
            "labels": _coded(samples.series_index, labels),
            "value": samples.values,
        }
    )
    _write(path, table)


def _record(row: RequestRow) -> dict[str, object]:
    record: dict[str, object] = {name: getattr(row, name) for name in row.__slots__ if name != "judgement"}
    record["transport_detail"] = _whole(row.transport_detail)
    record["top_tokens"] = _json([[token.text, token.logprob] for token in row.top_tokens]) if row.top_tokens else None
    record |= dict.fromkeys(("outcome", "signature", "unscored_reason", "findings", "difference", "divergence"))
    if row.judgement is not None:
        told = row.judgement.to_json()
        record["outcome"] = told["outcome"]
        record["signature"] = row.signature
        record["unscored_reason"] = told["reason"]
        for name in ("findings", "difference", "divergence"):
            record[name] = _json(told[name]) if told[name] else None
    return record


def _json(value: object) -> str:
    """JSON text; lone surrogates of hostile answers, which UTF-8 cannot hold, become U+FFFD."""
    return orjson.dumps(_clean(value)).decode()


def _clean(value: object) -> object:
    if isinstance(value, str):
        return _whole(value)
    if isinstance(value, dict):
        return {_whole(str(key)): _clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    return value


def _whole(text: str) -> str:
    return text.encode("utf-8", errors="surrogatepass").decode("utf-8", errors="replace")


def _coded(index: np.ndarray, names: Sequence[str]) -> pa.Array:
    """A dictionary column; names that repeat are merged, since Parquet wants them unique."""
    unique = list(dict.fromkeys(names))
    position = {name: place for place, name in enumerate(unique)}
    codes = np.asarray([position[name] for name in names], dtype=np.int32)
    indices = codes[index] if len(codes) else np.empty(0, dtype=np.int32)
    return pa.DictionaryArray.from_arrays(pa.array(indices, type=pa.int32()), pa.array(unique, type=_TEXT))


def _write(path: Path, table: pa.Table) -> None:
    def write(temporary: Path) -> None:
        pq.write_table(table, temporary, compression="zstd")

    write_atomically(path, write)
