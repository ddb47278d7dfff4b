"""Each limit, at it and beyond."""

from __future__ import annotations

import pytest

from pdwatch.loadgen.validity import ClientFacts, ProcessUse, ValidityLimits, judge_validity

FINE = {
    "loop_lag_p50_seconds": 0.0001,
    "loop_lag_p99_seconds": 0.1,
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
    "most_in_flight": 63,
    "bound_in_flight": 64,
    "client_refusals": 0,
    "back_off_seconds": 9.0,
}


def test_at_the_limits_and_unknown() -> None:
    assert judge_validity(ClientFacts.model_validate(FINE), ValidityLimits()).is_valid
    assert judge_validity(ClientFacts(), ValidityLimits()).is_valid


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"loop_lag_p99_seconds": 0.113},
            "loop lag p99 113 ms is over 100 ms: requests are sent that much late; give the client a core of its own",
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
        ({"client_refusals": 2}, "2 requests could not be sent for want of this host's descriptors or ports"),
        ({"send_backlog_most_seconds": 1.5}, "a request took 1.5e+03 ms to be sent"),
    ],
)
def test_beyond(changes: dict[str, object], reason: str) -> None:
    validity = judge_validity(ClientFacts.model_validate({**FINE, **changes}), ValidityLimits())
    assert not validity.is_valid
    assert len(validity.reasons) == 1
    assert reason in validity.reasons[0]
    assert not validity.is_bound_reached


LATE = {"schedule_lag_p99_seconds": 2.0, "achieved_rate_per_second": 30, "most_in_flight": 64}


def test_the_bound_is_the_reason_for_what_waited_for_it() -> None:
    validity = judge_validity(ClientFacts.model_validate({**FINE, **LATE}), ValidityLimits())
    assert (validity.is_valid, validity.is_bound_reached, len(validity.reasons)) == (False, True, 1)
    assert validity.reasons[0].startswith("the bound of 64 in flight was reached, and requests waited for it")
    # reached, and nothing waited long
    assert judge_validity(ClientFacts.model_validate({**FINE, "most_in_flight": 64}), ValidityLimits()).is_valid


def test_a_client_at_its_limit_is_no_bound() -> None:
    facts = ClientFacts.model_validate({**FINE, **LATE, "loop_lag_p99_seconds": 0.5})
    validity = judge_validity(facts, ValidityLimits())
    assert (validity.is_valid, validity.is_bound_reached, len(validity.reasons)) == (False, False, 2)


def test_a_process_that_no_time_passed_for_is_not_judged() -> None:
    assert ProcessUse(cpu_seconds=1, elapsed_seconds=0).share is None


def test_facts_travel_as_json() -> None:
    facts = ClientFacts.model_validate(FINE)
    assert ClientFacts.model_validate_json(facts.model_dump_json()) == facts
