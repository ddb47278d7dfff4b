"""Limits: how they are written, and which requests keep to them."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from pdwatch.loadgen.errors import PlanError
from pdwatch.loadgen.slo import Slo
from pdwatch.loadgen.transcript import Outcome


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("ttft=1s", {"ttft": 1.0}),
        ("ttft=1s,tpot=50ms", {"ttft": 1.0, "tpot": 0.05}),
        (" TTFT = 0.5 s , e2e=2m ", {"ttft": 0.5, "e2e": 120.0}),
        ("stall=250us", {"stall": 0.00025}),
        ("e2e=3", {"e2e": 3.0}),
    ],
)
def test_written(text: str, limits: dict[str, float]) -> None:
    assert {name: limit for name, limit in Slo.parse(text).limits() if limit is not None} == pytest.approx(limits)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "SLO '' is no limit; write it as ttft=1s,tpot=50ms"),
        ("latency=1s", "SLO 'latency=1s' is no limit"),
        ("ttft", "SLO 'ttft' is no limit"),
        ("ttft=fast", "SLO 'ttft=fast' has no duration above 0; write it as 50ms or 1.5s"),
        ("ttft=0ms", "has no duration above 0"),
        ("ttft=-1s", "has no duration above 0"),
        ("ttft=1h", "has no duration above 0"),
        ("ttft=1s,ttft=2s", "limits ttft twice"),
    ],
)
def test_written_wrong(text: str, complaint: str) -> None:
    with pytest.raises(PlanError) as caught:
        Slo.parse(text)
    assert complaint in str(caught.value)


def test_limits_nothing() -> None:
    with pytest.raises(ValidationError, match="give at least one of ttft"):
        Slo()
    with pytest.raises(ValidationError, match="greater than 0"):
        Slo(ttft_seconds=0)


def test_shown() -> None:
    assert str(Slo.parse("tpot=50ms,ttft=1.5s")) == "ttft ≤ 1.5 s, tpot ≤ 50 ms"


@pytest.mark.parametrize(
    ("slo", "changes", "broken"),
    [
        pytest.param("ttft=200ms", {}, [], id="at the limit"),
        pytest.param("ttft=199ms", {}, ["ttft"], id="over it"),
        pytest.param("ttft=199ms,tpot=99ms,e2e=999ms", {}, ["ttft", "tpot", "e2e"], id="all are told"),
        pytest.param(
            "ttft=1s", {"scheduled_time_to_first_token_seconds": 1.5}, ["ttft"], id="a user waits from schedule on"
        ),
        pytest.param("e2e=2s", {"scheduled_end_to_end_seconds": 2.5}, ["e2e"], id="e2e too"),
        pytest.param(
            "tpot=1ms", {"time_per_output_token_seconds": None, "output_tokens": 1}, [], id="one token has no pace"
        ),
        pytest.param(
            "tpot=1s",
            {"time_per_output_token_seconds": None, "output_tokens": None},
            ["tpot"],
            id="unknown is not kept to",
        ),
        pytest.param("ttft=1s", {"time_to_first_token_seconds": None}, ["ttft"], id="not streamed has no first token"),
        pytest.param("stall=1s", {"longest_inter_chunk_seconds": None}, [], id="one chunk has no stall"),
        pytest.param("stall=99ms", {}, ["stall"], id="stalled"),
    ],
)
def test_kept_to(row, slo: str, changes: dict[str, object], broken: list[str]) -> None:
    # TTFT 0.2 s, TPOT (1 − 0.2) / 8 = 0.1 s, E2E 1 s
    limits, request = Slo.parse(slo), row(**changes)
    assert list(limits.broken(request)) == broken
    assert limits.is_met(request) is (not broken)


def test_what_is_not_complete_is_not_good(failure, row) -> None:
    slo = Slo.parse("e2e=1m")
    assert slo.is_met(row())
    assert not slo.is_met(failure())
    assert not slo.is_met(row(outcome=Outcome.TRUNCATED))
