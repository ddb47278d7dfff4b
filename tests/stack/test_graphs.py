"""Capture: what can be held without a GPU. The captured step itself runs in `capture_check` on one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from pdwatch.stack.embedded import capture_check, checkpoint
from pdwatch.stack.embedded.config import EngineConfig
from pdwatch.stack.embedded.graphs import DecodeGraphs
from pdwatch.stack.embedded.overlap import SideStream

WEIGHTS = Path(checkpoint.__file__).parent / "weights" / "tiny_toolcaller.safetensors"


@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        ({"capture": True}, "capture needs a CUDA device, not cpu"),
        ({"multi_stream_overlap": "on"}, "only acts inside a capture"),
        ({"capture": True, "device": "cuda", "fault": "slow_step"}, "set capture to false"),
        ({"capture": True, "device": "cuda", "capture_batch_sizes": ()}, "name at least one size"),
    ],
    ids=["no-gpu", "no-capture", "fault", "no-sizes"],
)
def test_combinations_that_cannot_work(settings: dict[str, object], remedy: str) -> None:
    with pytest.raises(ValidationError, match=remedy):
        EngineConfig(**settings)  # type: ignore[arg-type]  # fields by name


@pytest.mark.parametrize(("batch", "bucket"), [(1, 1), (2, 2), (3, 8), (8, 8), (9, None)])
def test_the_smallest_bucket_that_holds_the_batch(batch: int, bucket: int | None) -> None:
    graphs = object.__new__(DecodeGraphs)
    graphs._buckets = [1, 2, 8]

    assert graphs.bucket(batch) == bucket


@pytest.mark.parametrize(
    ("first", "last", "reused"), [(0, 100, True), (99, 100, True), (100, 200, False), (-50, 0, False), (-50, 1, True)]
)
def test_the_address_oracle_compares_ranges(first: int, last: int, reused: bool) -> None:
    # a transient of 100 bytes in the middle of a buffer, and an allocation at first..last relative to it.
    buffer = torch.zeros(400, dtype=torch.uint8)
    base = buffer.data_ptr() + 100
    oracle = object.__new__(SideStream)
    oracle.reused, oracle._released = [], None
    oracle.released(base, 100)

    class Allocation:
        def untyped_storage(self) -> Allocation:
            return self

        def data_ptr(self) -> int:
            return base + first

        def nbytes(self) -> int:
            return last - first

    oracle.allocated(Allocation())  # type: ignore[arg-type]  # fields by name

    assert oracle.reused == [reused]


def test_the_check_runs_its_eager_part_on_a_cpu() -> None:
    report = capture_check.check(WEIGHTS, [1, 2], "cpu", new_tokens=6, delay_cycles=0, seed=0)

    assert [(result["mode"], result["batch"], result["wrong_rows"]) for result in report["results"]] == [
        ("eager", 1, 0),
        ("eager", 2, 0),
    ]


def test_the_check_finds_rows_that_differ() -> None:
    assert capture_check.compare([[1, 2, 3], [4, 5, 6]], [[1, 2, 3], [4, 9, 6]]) == {
        "rows": 2,
        "wrong_rows": 1,
        "first_wrong_token": 1,
    }


def test_the_check_ignores_what_follows_the_answer() -> None:
    assert capture_check.compare([[1, 257, 3]], [[1, 257, 9]])["wrong_rows"] == 0
