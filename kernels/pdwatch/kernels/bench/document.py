"""What a run of the benchmark leaves: where, how and what was measured."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pdwatch.kernels.bench.errors import BenchArguments
from pdwatch.kernels.bench.measure import Row
from pdwatch.kernels.bench.timing import Roof

SCHEMA = "pdwatch.kernels.bench/1"
METHOD = (
    "median device time of one call: CUDA-graph replays of calls over different inputs, the L2 filled with other data "
    "before each replay; what a peer computes once for its lengths (schedules) is not in its time"
)


@dataclass(slots=True, kw_only=True)
class Document:
    """`facts` names the device and the versions of what ran."""

    started_utc: str
    facts: dict[str, str]
    roof: Roof
    rows: list[Row] = field(default_factory=list)
    method: str = METHOD
    schema_name: str = SCHEMA

    def groups(self) -> dict[tuple[str, str], list[Row]]:
        """Rows by family and case, in the order in which they were measured."""
        groups: dict[tuple[str, str], list[Row]] = {}
        for row in self.rows:
            groups.setdefault((row.family, row.case), []).append(row)
        return groups

    def write(self, path: Path) -> None:
        """Writes the whole document; a reader never sees half of it."""
        partial = path.with_name(f"{path.name}.partial")
        partial.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        partial.replace(path)


def read_document(path: Path) -> Document:
    """A document that `Document.write` wrote. Raises BenchArguments when it is not one."""
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        roof = Roof(**content.pop("roof"))
        rows = [Row(**row) for row in content.pop("rows")]
        document = Document(roof=roof, rows=rows, **content)
    except OSError as error:
        raise BenchArguments(f"cannot read `{path}`: {error.strerror}; name a file that --json-file wrote") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BenchArguments(f"`{path}` is no result of the benchmark: {error}") from error
    if document.schema_name != SCHEMA:
        raise BenchArguments(f"`{path}` has schema {document.schema_name}, this version reads {SCHEMA}: measure again")
    return document
