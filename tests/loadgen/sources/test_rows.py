"""Files of rows: the index, and everything that a hostile file may hold."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdwatch.loadgen import PlanError
from pdwatch.loadgen.sources import rows
from pdwatch.loadgen.sources.rows import Deck, open_array_or_lines, open_lines


def accept(value: Any) -> bool:
    if value == "wrong":
        raise ValueError("is wrong; write it right")
    return bool(value != "skip")


def test_lines(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\n  \n"skip"\n[2]\n"last"')
    found = open_lines(path, accept)
    assert [found.value(index) for index in range(len(found))] == [{"a": 1}, [2], "last"]
    assert [found.number(index) for index in range(len(found))] == [1, 5, 6]


def test_many_lines_are_found(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_text("".join(f'{{"row": {row}}}\n' for row in range(100_000)))
    found = open_lines(path, accept)
    assert len(found) == 100_000
    assert [found.value(row)["row"] for row in (0, 1, 50_000, 99_999)] == [0, 1, 50_000, 99_999]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(), lambda inner: st.lists(inner, max_size=3)
)


@given(st.lists(st.dictionaries(st.text(), JSON, max_size=4), min_size=1, max_size=6), st.booleans(), st.booleans())
def test_array_elements_are_what_a_parser_finds(
    tmp_path_factory: pytest.TempPathFactory, values: list[Any], is_ascii: bool, is_indented: bool
) -> None:
    path = tmp_path_factory.mktemp("array") / "rows"
    path.write_text(json.dumps(values, ensure_ascii=is_ascii, indent=2 if is_indented else None))
    found = open_array_or_lines(path, accept)
    assert [found.value(index) for index in range(len(found))] == values
    assert [found.number(index) for index in range(len(found))] == list(range(1, len(values) + 1))


DEEP = b"[" * 200_000 + b"]" * 200_000


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "no row of it can be sent"),
        (b"\n\n", "no row of it can be sent"),
        (b'"skip"\n', "no row of it can be sent"),
        (b'{"a": 1}\n{"a": \n', "rows: line 2 is not JSON that can be used"),
        (b'"a"\n\n"\xff\xfe"\n', "rows: line 3 is not JSON that can be used"),
        (b'"a"\n"\\ud800"\n', "rows: line 2 is not JSON that can be used"),
        (b'"a"\n"wrong"\n', "rows: line 2 is wrong; write it right"),
        (b'{"a": ' + DEEP + b"}\n", "rows: line 1 is not JSON that can be used"),
        (b'{"a": ' + b"[" * 300 + b"]" * 300 + b"}\n", "rows: line 1 nests too deep; flatten or remove it"),
        (b"\x00\x01\x02", "rows: line 1 is not JSON that can be used"),
        (b'{"a": NaN}\n', "rows: line 1 is not JSON that can be used"),
    ],
)
def test_bad_lines(tmp_path: Path, data: bytes, complaint: str) -> None:
    path = tmp_path / "rows"
    path.write_bytes(data)
    with pytest.raises(PlanError, match=complaint) as caught:
        open_lines(path, accept)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300 + len(str(path))


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"[]", "no row of it can be sent"),
        (b"[1, 2]", "no row of it can be sent"),
        (b'[{"a": 1}, {"a": x}]', "rows: element 2 is not JSON that can be used"),
        (b'[{"a": 1}, {"a": 2', "its JSON array does not end"),
        (b'[{"a": "' + b'\\"' * 100_000, "its JSON array does not end"),
        (b"[" + DEEP + b"]", "rows: element 1 is not JSON that can be used"),
        (b'[{"a": "]\\\\"}, {"\xff": 1}]', "rows: element 2 is not JSON that can be used"),
        (b'{"a": 1}\nwrong', "rows: line 2 is not JSON that can be used"),
    ],
)
def test_bad_arrays(tmp_path: Path, data: bytes, complaint: str) -> None:
    path = tmp_path / "rows"
    path.write_bytes(data)
    with pytest.raises(PlanError, match=complaint):
        open_array_or_lines(path, accept)


@pytest.mark.parametrize("opening", [open_lines, open_array_or_lines])
def test_huge_rows_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opening) -> None:
    monkeypatch.setattr(rows, "MOST_ROW_BYTES", 2**20)
    path = tmp_path / "rows"
    path.write_text(json.dumps([{"a": "x" * 2**20}] if opening is open_array_or_lines else "x" * 2**21))
    with pytest.raises(PlanError, match=r"rows: (line|element) 1 is longer than 1 MiB; shorten or remove it"):
        opening(path, accept)


@pytest.mark.parametrize("opening", [open_lines, open_array_or_lines])
def test_what_is_no_file(tmp_path: Path, opening) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "dangling").symlink_to(tmp_path / "none")
    (tmp_path / "file").write_text('{"a": 1}\n')
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for path in (tmp_path, tmp_path / "fifo", Path("/dev/zero")):
        with pytest.raises(PlanError, match="is a folder or a device; give the path of a file"):
            opening(path, accept)
    for name, reason in [
        ("none", "No such file"),
        ("loop", "Too many levels of symbolic links"),
        ("dangling", "No such file"),
        ("nul\0", "null byte"),
        ("n" * 300, "File name too long"),
    ]:
        with pytest.raises(PlanError, match=f"cannot be read .*{reason}"):
            opening(tmp_path / name, accept)
    # people keep their data sets behind links
    assert opening(tmp_path / "link", accept).value(0) == {"a": 1}


def test_a_file_that_changes(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_text('{"a": 1}\n{"a": 2}\n')
    found = open_lines(path, accept)
    os.truncate(path, 12)
    assert found.value(0) == {"a": 1}
    with pytest.raises(PlanError, match="rows: line 2 changed while it was in use"):
        found.value(1)


@pytest.mark.parametrize("count", [1, 2, 3, 12, 1000])
@pytest.mark.parametrize("seed", [1, 2])
def test_shuffled_rows_come_once_each(count: int, seed: int) -> None:
    deck = Deck(count, "shuffled", seed)
    for start in (0, 16_0_0_000000):
        taken = [deck.index(number) for number in range(start, start + count)]
        assert sorted(taken) == list(range(count))
    assert count < 1000 or taken != sorted(taken)


def test_file_order_follows_a_phase() -> None:
    deck = Deck(3, "file", 1)
    assert [deck.index(16_0_0_000000 + sequence) for sequence in range(5)] == [0, 1, 2, 0, 1]
    assert [deck.index(4_1_1_000000 + sequence) for sequence in range(2)] == [0, 1]
