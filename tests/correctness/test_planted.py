"""Planted values: exact in value and type, calls matched, nonces found where they do not belong."""

from __future__ import annotations

import time

import pytest

from pdwatch.correctness import NonceIndex, NonceOwner
from pdwatch.correctness.matching import assign, exactly_equal, mismatches
from pdwatch.correctness.planted import check_leaks, check_planted
from pdwatch.correctness.structure import ReceivedCall


@pytest.mark.parametrize(
    ("expected", "received", "paths"),
    [
        (1, 1, []),
        (1, 1.0, ["$"]),
        (1, True, ["$"]),
        (0, False, ["$"]),
        ("1", 1, ["$"]),
        (2**53 + 1, 2**53, ["$"]),
        (None, False, ["$"]),
        ("e\u0301", "\u00e9", ["$"]),
        ([1, 2], [1, 3], ["$[1]"]),
        ([1, 2], [2], ["$"]),
        ([["a"], ["b"]], [["a"], ["c"]], ["$[1][0]"]),
        ({"k": 1}, {"k": 1}, []),
        ({"k": 1, "l": 2}, {"l": 2, "k": 1}, []),
        ({"k": {"m": "a"}}, {"k": {"m": "b"}}, ["$.k.m"]),
        ({"k": 1}, {}, ["$.k"]),
        ({}, {"k": 1}, ["$.k"]),
        ({"k": 1}, [1], ["$"]),
        (("a", "b"), ["a", "b"], []),
    ],
)
def test_mismatches(expected, received, paths):
    assert [mismatch.path for mismatch in mismatches(expected, received)] == paths
    assert exactly_equal(expected, received) == (not paths)


A, B, C = ("f", {"x": 1}), ("f", {"x": 2}), ("g", {"x": 1})


@pytest.mark.parametrize(
    ("expected", "received", "pairs"),
    [
        ([A, B], [A, B], {(0, 0), (1, 1)}),
        ([A, B], [B, A], {(0, 1), (1, 0)}),
        # identical calls keep their order.
        ([A, A], [A, A], {(0, 0), (1, 1)}),
        # a greedy matching would give the first expected call to the wrong partner.
        ([("f", {"x": 1, "y": 9}), A], [A, ("f", {"x": 1, "y": 8})], {(0, 1), (1, 0)}),
        ([A, C], [C], {(1, 0), (0, None)}),
        ([A], [C, A], {(0, 1), (None, 0)}),
        ([A], [("f", None)], {(0, 0)}),
        ([], [A], {(None, 0)}),
        ([A], [], {(0, None)}),
    ],
    ids=["in order", "swapped", "twins", "not greedy", "one missing", "one too many", "no values", "none", "nothing"],
)
def test_assign(expected, received, pairs):
    assert set(assign(expected, received)) == pairs


def codes(task, content="", calls=()):
    received = [ReceivedCall(name, str(arguments), arguments) for name, arguments in calls]
    return [finding.code for finding in check_planted(task, content, received)]


def test_what_is_missing_or_too_much(make_task):
    two = make_task(calls=[("f", {"x": "NONCE7Q4X"}), ("g", {"y": 1})])
    assert codes(two, calls=[("f", {"x": "NONCE7Q4X"}), ("g", {"y": 1})]) == []
    assert codes(two, calls=[("g", {"y": 1}), ("f", {"x": "NONCE7Q4X"})]) == ["call_order"]
    assert codes(two, calls=[("f", {"x": "NONCE7Q4X"})]) == ["missing_call"]
    assert codes(two, calls=[("f", {"x": "NONCE7Q4X"}), ("g", {"y": 1}), ("g", {"y": 1})]) == ["unexpected_call"]
    assert codes(two, calls=[("f", {"x": "NONCE7Q4X", "z": 0}), ("g", {})]) == ["unexpected_field", "missing_field"]
    assert codes(two, "so", [("f", {"x": "NONCE7Q4X"}), ("g", {"y": 1})]) == ["unexpected_text"]
    assert codes(two, calls=[("f", {"x": "NONCE7Q4Y"}), ("g", {"y": 1})]) == ["wrong_value", "nonce_missing"]


def test_text_tasks(make_task):
    task = make_task(text="say NONCE7Q4X")
    assert codes(task, "say NONCE7Q4X") == []
    assert codes(task, "say NONCE7Q4X ") == ["wrong_text"]
    assert codes(task, "say NONCE7Q4X", [("f", {})]) == ["called_when_told_not"]


def test_a_leak_names_the_likeliest_owner(make_task):
    nonces = NonceIndex(
        [
            NonceOwner("NONCE7Q4X", "mine", "candidate", 10, 11),
            NonceOwner("OTHER55XY", "earlier", "candidate", 0, 1),
            NonceOwner("OTHER55XY", "together", "candidate", 10.5, 12),
            NonceOwner("OTHER55XY", "baseline", "baseline", 10.5, 12),
        ]
    )
    (finding,) = check_leaks(nonces, make_task(), ["xOTHER55XYx NONCE7Q4X"], "", "candidate", 10, 11)
    assert finding.evidence["owner_request_id"] == "together"
    assert "in flight at the same time" in finding.detail
    (finding,) = check_leaks(nonces, make_task(), ["OTHER55XY"], "", "candidate", 20, 21)
    assert finding.evidence["in_flight_together"] is False


@pytest.mark.parametrize(
    ("text", "own", "allowed", "found"),
    [
        ("ABCDEF12", "ZZZZZZ", "", ("ABCDEF12",)),
        ("ABCDEF12", "ABCDEF12", "", ()),
        ("ABCDEF12", "ZZZZZZ", "the prompt says ABCDEF12", ()),
        ("ABCDEF1", "ZZZZZZ", "", ()),
        ("LONGNONCE9 ABCDEF12 ABCDEF12", "ZZZZZZ", "", ("LONGNONCE9", "ABCDEF12")),
        ("", "ZZZZZZ", "", ()),
    ],
    ids=["foreign", "own", "in the prompt", "a part", "two lengths", "empty"],
)
def test_foreign_nonces(text, own, allowed, found):
    owners = [NonceOwner(nonce, nonce, "candidate", 0, 1) for nonce in ("ABCDEF12", "LONGNONCE9")]
    assert NonceIndex(owners).foreign(text, own, allowed) == found


def test_many_nonces_and_a_huge_answer_cost_little():
    owners = [NonceOwner(f"NONCE{number:05d}", str(number), "candidate", 0, 1) for number in range(10_000)]
    index = NonceIndex(owners)
    started = time.process_time()
    assert index.foreign("x" * 900_000 + "NONCE09999" + "y" * 9_000_000, "NONCE00001") == ("NONCE09999",)
    assert time.process_time() - started < 3
    assert len(index) == 10_000


def test_a_short_nonce_proves_nothing():
    with pytest.raises(ValueError, match="by chance"):
        NonceIndex([NonceOwner("ABC", "r1", "candidate", 0, 1)])


def test_open_ended_requests_overlap_with_what_follows():
    assert NonceOwner("ABCDEF", "r", "a", 0, None).in_flight_with(100, 101)
    assert not NonceOwner("ABCDEF", "r", "a", 0, 1).in_flight_with(2, None)
