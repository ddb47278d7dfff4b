from __future__ import annotations

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdwatch.exporters import TraceInvalid
from pdwatch.exporters.profile import trace as module
from pdwatch.exporters.profile.activities import Activities
from pdwatch.exporters.profile.trace import TraceLimits, read_events

DATA = Path(__file__).parents[1] / "data" / "traces"

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3),
    max_leaves=8,
)


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(content: bytes | str, name: str = "trace.json") -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


@pytest.mark.parametrize("name", ["h200_captured.json.gz", "cpu_step.json.gz"])
def test_reads_what_torch_writes(name: str) -> None:
    found = list(read_events(DATA / name))
    assert found == json.loads(gzip.decompress((DATA / name).read_bytes()))["traceEvents"]
    assert len(found) > 400


FORMS = {
    "object": '{"schemaVersion": 1, "traceEvents": [{"a": 1}, {"b": [2]}], "traceName": "x"}',
    "array": '[{"a": 1},\n {"b": [2]}]',
    "spaces": ' \n{ "x" : 1.5 , "traceEvents" :\t[ {"a":1} , {"b":[2]} ] } \n',
    "what_is_no_event": '{"traceEvents": [{"a": 1}, 5, null, "x", [], {"b": [2]}]}',
    "number_last": '{"traceEvents": [{"a": 1}, {"b": [2]}], "n": 12345}',
}


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("chunk", [1, 3, 1 << 20])
def test_reads_both_forms_in_any_pieces(text: str, chunk: int, write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK_BYTES", chunk)
    assert list(read_events(write(text))) == [{"a": 1}, {"b": [2]}]
    assert list(read_events(write(gzip.compress(text.encode()), "trace.json.gz"))) == [{"a": 1}, {"b": [2]}]


@given(
    events=st.lists(st.dictionaries(st.text(max_size=5), json_values, max_size=3), max_size=5), chunk=st.integers(1, 9)
)
def test_reads_any_events_in_any_pieces(
    events: list[dict[str, Any]], chunk: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    path.write_text(
        json.dumps({"other": [1, {"x": "}]"}], "traceEvents": events}, ensure_ascii=False), "utf-8", "surrogatepass"
    )
    before = module._CHUNK_BYTES
    module._CHUNK_BYTES = chunk  # type: ignore[misc]  # what the test is about
    try:
        found = list(read_events(path))
    finally:
        module._CHUNK_BYTES = before  # type: ignore[misc]  # a Final, put back
    if all(ord(letter) < 0xD800 or ord(letter) > 0xDFFF for letter in json.dumps(events, ensure_ascii=False)):
        assert found == events


HOSTILE = {
    "empty": ("", "ends where"),
    "text": ("hello", "neither an object nor an array"),
    "no_events": ('{"a": 1}', "no traceEvents"),
    "events_are_an_object": ('{"traceEvents": {}}', "no traceEvents"),
    "cut_in_an_event": ('{"traceEvents": [{"a": 1}, {"b"', "cut off or damaged"),
    "cut_between_events": ('{"traceEvents": [{"a": 1},', "ends where"),
    "cut_after_events": ('{"traceEvents": [{"a": 1}]', "ends where"),
    "no_comma": ('{"traceEvents": [{"a": 1} {"b": 2}]}', "neither `,` nor `]`"),
    "no_colon": ('{"traceEvents" [1]}', "a key without a value"),
    "not_a_number": ('{"traceEvents": [{"dur": NaN}]}', "NaN is no number"),
    "infinity": ('{"traceEvents": [{"dur": -Infinity}]}', "-Infinity is no number"),
    "deep": ('{"traceEvents": [' + "[" * 100_000, "cut off or damaged"),
    "many_digits": ('{"traceEvents": [{"a": ' + "1" * 5000 + "}]}", "digits"),
    "two": ('{"traceEvents": []} {}', "something follows"),
    "two_arrays": ("[][]", "something follows"),
    "binary": (b"\x00\x01\xff", "neither an object nor an array"),
}


@pytest.mark.parametrize(("content", "message"), HOSTILE.values(), ids=HOSTILE)
def test_what_is_no_trace_is_refused(content: str | bytes, message: str, write: Any) -> None:
    with pytest.raises(TraceInvalid, match=message):
        list(read_events(write(content)))


def test_a_trace_cut_off_anywhere_is_refused(write: Any) -> None:
    text = json.dumps({"traceEvents": [{"name": 'a "b" \\ c', "ts": 1.5e3}, {"args": {"x": [1, 2]}}], "end": 1})
    for length in range(len(text) - 1):
        with pytest.raises(TraceInvalid):
            list(read_events(write(text[:length])))


def test_a_gzip_cut_off_or_damaged_is_refused(write: Any) -> None:
    whole = (DATA / "cpu_step.json.gz").read_bytes()
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 0xFF
    for content in (whole[:-9], whole[:1000], bytes(damaged), b"\x1f\x8b"):
        with pytest.raises(TraceInvalid):
            list(read_events(write(content, "trace.json.gz")))


def test_limits(write: Any) -> None:
    bomb = write(gzip.compress(b'{"traceEvents": [' + b" " * (8 << 20)), "bomb.json.gz")
    with pytest.raises(TraceInvalid, match="more than 2 MiB"):
        list(read_events(bomb, TraceLimits(bytes=2 << 20)))
    many = write('{"traceEvents": [' + ",".join(["{}"] * 11) + "]}")
    with pytest.raises(TraceInvalid, match="more than 10 events"):
        list(read_events(many, TraceLimits(events=10)))
    long = write('{"traceEvents": [{"name": "' + "x" * (3 << 20))
    with pytest.raises(TraceInvalid, match="longer than 1000 characters"):
        list(read_events(long, TraceLimits(event_characters=1000)))
    with pytest.raises(TraceInvalid, match="cannot be read"):
        list(read_events(long.with_name("none.json")))


def test_memory_does_not_grow_with_the_trace(write: Any) -> None:
    event = json.dumps(
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1.5, "dur": 2.0, "args": {"x": "y" * 200}}
    )
    path = write('{"traceEvents": [' + ",".join([event] * 60_000) + "]}")
    assert path.stat().st_size > 16e6
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_events(path)) == 60_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8e6


KERNEL = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1.0, "dur": 1.0, "args": {"device": 0, "correlation": 1}}


@pytest.mark.parametrize(
    "change",
    [{"ts": None}, {"ts": "1"}, {"ts": True}, {"ts": 1e300}, {"dur": -1.0}, {"dur": None}, {"name": 5}],
    ids=str,
)
def test_a_kernel_without_a_time_is_damage(change: dict[str, Any]) -> None:
    with pytest.raises(TraceInvalid, match="no time or no name"):
        Activities([KERNEL | change])


@pytest.mark.parametrize(
    "arguments", [None, [], {}, {"device": -1}, {"device": 2**70}, {"device": "0"}, {"device": True}]
)
def test_a_kernel_without_a_device_is_on_the_one_of_its_row(arguments: Any) -> None:
    activities = Activities([KERNEL | {"args": arguments, "pid": 3}, KERNEL | {"args": arguments, "pid": "x"}])
    assert set(activities.devices) == {3, 0}


def test_names_and_devices_are_bounded() -> None:
    with pytest.raises(TraceInvalid, match="more than 64 GPUs"):
        Activities(KERNEL | {"args": {"device": number}} for number in range(65))
    with pytest.raises(TraceInvalid, match="more than 200000 kernels"):
        Activities(KERNEL | {"name": str(number)} for number in range(200_001))
