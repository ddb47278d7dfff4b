"""Each limit, at it and beyond."""

from __future__ import annotations

import pytest

from pdwatch.loadgen.validity import ClientFacts, ProcessUse, ValidityLimits, judge_validity

FINE = {
    "loop_lag_p50_seconds": 0.0001,
    "loop_lag_p99_seconds": 0.02,
    "loop_lag_most_seconds": 1.0,
    "processes": {"driver": ProcessUse(cpu_seconds=9.5, elapsed_seconds=10)},
    "intended_in_flight": 64,
    "achieved_in_flight": 57.6,
    "intended_rate_per_second": 100,
    "achieved_rate_per_second": 95,
    "schedule_lag_p99_seconds": 0.1,
    "recorder_backlog_most_requests": 10**6,
    "recorder_backlog_most_bytes": 256 * 2**20,
    "send_backlog_most_bytes": 10**9,
    "send_backlog_most_seconds": 1.0,
    "requests_made_late": 3,
}


def test_at_the_limits_and_unknown() -> None:
    assert judge_validity(ClientFacts.model_validate(FINE), ValidityLimits()).is_valid
    assert judge_validity(ClientFacts(), ValidityLimits()).is_valid


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"loop_lag_p99_seconds": 0.0213},
            "loop lag p99 21.3 ms is over 20 ms: stamps are late by that much; give the client a core of its own",
        ),
        ({"loop_lag_most_seconds": 1.2}, "the loop stood still for 1.2e+03 ms, over 1e+03 ms"),
        (
            {"processes": {"clerk": ProcessUse(cpu_seconds=9.9, elapsed_seconds=10)}},
            "process clerk used 99 % of a core, over 95 %: use more processes or fewer users",
        ),
        ({"achieved_in_flight": 31.0}, "31.0 requests were in flight on average, 64 intended (at least 90 %)"),
        ({"achieved_in_flight": 0.0}, "0.0 requests were in flight on average"),
        ({"achieved_rate_per_second": 90}, "90.00 requests/s were sent, 100 intended (at least 95 %)"),
        ({"schedule_lag_p99_seconds": 0.25}, "requests were sent 250 ms (p99) after their time, over 100 ms"),
        ({"recorder_backlog_most_bytes": 300 * 2**20}, "300 MiB waited to be recorded, over 256"),
        ({"send_backlog_most_seconds": 1.5}, "a request took 1.5e+03 ms to be sent"),
    ],
)
def test_beyond(changes: dict[str, object], reason: str) -> None:
    validity = judge_validity(ClientFacts.model_validate({**FINE, **changes}), ValidityLimits())
    assert not validity.is_valid
    assert len(validity.reasons) == 1
    assert reason in validity.reasons[0]


def test_a_process_that_no_time_passed_for_is_not_judged() -> None:
    assert ProcessUse(cpu_seconds=1, elapsed_seconds=0).share is None


def test_facts_travel_as_json() -> None:
    facts = ClientFacts.model_validate(FINE)
    assert ClientFacts.model_validate_json(facts.model_dump_json()) == facts
