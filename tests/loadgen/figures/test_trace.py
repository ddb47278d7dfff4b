"""Traces: both forms, and every way of being no trace."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pdwatch.loadgen.errors import PlanError
from pdwatch.loadgen.trace import TraceRequest, read_offsets, read_trace


def write(tmp_path: Path, content: bytes | str) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_mooncake(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        '{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}\n'
        "\n"
        '{"timestamp": 30535, "input_length": 6472, "output_length": 26, "hash_ids": [46, 2353]}\n',
    )
    # from the first request on: (30535 − 27482) ms
    assert list(read_trace(path)) == [
        TraceRequest(0.0, 6955, 52, (46, 47), None),
        TraceRequest(30.535 - 27.482, 6472, 26, (46, 2353), None),
    ]
    assert list(read_offsets(path)) == pytest.approx([0.0, 3.053])


def test_plain(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        '{"timestamp_seconds": 1.5, "body": {"messages": []}}\n'
        '{"timestamp_seconds": 1.5, "input_length": 3, "output_length": 0}',
    )
    assert list(read_trace(path)) == [
        TraceRequest(0.0, None, None, None, {"messages": []}),
        TraceRequest(0.0, 3, 0, None, None),
    ]


GOOD = '{"timestamp": 5, "input_length": 1, "output_length": 1}\n'


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "holds no request; give a JSONL file with one a line"),
        ("\n\n", "holds no request"),
        (GOOD + "{", "line 2 is not JSON"),
        (GOOD + "[" * 100_000, "line 2 is not JSON"),
        (GOOD + "[1]", "line 2 holds [1], not an object"),
        (b"\xff\xfe{", "line 1 is not JSON"),
        ('{"input_length": 1}', "line 1 has no timestamp_seconds; every line needs a number of seconds"),
        ('{"timestamp": "now"}', "line 1 has 'now' for timestamp; every line needs a number of milliseconds"),
        ('{"timestamp": true}', "line 1 has True for timestamp"),
        ('{"timestamp": -1}', "line 1 has -1 for timestamp"),
        ('{"timestamp": NaN}', "line 1 is not JSON"),
        (GOOD + '{"timestamp_seconds": 5}', "line 2 has no timestamp; every line needs a number of milliseconds"),
        (GOOD + GOOD.replace("5", "4"), "line 2 is before the line above in time; sort the trace"),
        ('{"timestamp": 1}', "line 1 has neither a body nor input_length and output_length"),
        ('{"timestamp": 1, "input_length": 4}', "line 1 has neither a body nor"),
        ('{"timestamp": 1, "input_length": 1.5, "output_length": 1}', "line 1 has 1.5 for input_length"),
        ('{"timestamp": 1, "input_length": -2, "output_length": 1}', "line 1 has -2 for input_length"),
        ('{"timestamp": 1, "input_length": 9e99, "output_length": 1}', "for input_length; give a whole number"),
        ('{"timestamp": 1, "body": "hello"}', "line 1 has the body 'hello'; write the request as an object"),
        (GOOD[:-2] + ', "hash_ids": [1, "x"]}', "for hash_ids; give a list of whole numbers"),
        (GOOD[:-2] + ', "hash_ids": 7}', "line 1 has 7 for hash_ids"),
        (b'{"a": "' + b"x" * (16 * 2**20) + b'"}', "line 1 is over 16 MiB long; split its request"),
    ],
)
def test_no_trace(tmp_path: Path, content: bytes | str, complaint: str) -> None:
    with pytest.raises(PlanError) as caught:
        list(read_trace(write(tmp_path, content)))
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"cannot be read \(No such file or directory\); give the path of a JSONL file"):
        list(read_trace(tmp_path / "none"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200))
def test_whatever_it_holds_is_read_or_refused(tmp_path: Path, content: bytes) -> None:
    try:
        list(read_trace(write(tmp_path, content)))
    except PlanError as error:
        assert str(error).isprintable()
