"""Exit codes and the words under the table."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from pdwatch.gate.load.results import LevelResult, LoadResult, SloResult
from pdwatch.gate.load.sheet import plain_lines, rich_table
from pdwatch.gate.load.table import milliseconds, notes, results_sheet
from pdwatch.loadgen.steady import Window
from pdwatch.loadgen.summary import Distribution

Make = Callable[..., LevelResult]
BOUND = {"reasons": ("the bound of 8 in flight was reached",), "is_bound_reached": True}
LAG = "loop lag p99 30 ms is over 20 ms"


def result(*levels: LevelResult, **changes: Any) -> LoadResult:
    values: dict[str, Any] = {
        "url": "http://127.0.0.1:1",
        "model": "small",
        "dialect": "openai",
        "dialect_reason": "as asked",
        "seed": 1,
        "command": (),
        "started_utc": "2026-12-01T12:00:00+00:00",
        "versions": {},
        "host": {},
        "plan": {},
        "levels": levels,
        "slo_share": 0.95,
    }
    return LoadResult(**{**values, **changes})


def test_an_slo_is_met_missed_or_unclear(level: Make) -> None:
    # bounds are ± 0.03, 95 % are wanted
    assert [level(good=good).slo for good in (98, 97, 93, 91)] == [
        SloResult.MET,
        SloResult.UNCLEAR,
        SloResult.UNCLEAR,
        SloResult.MISSED,
    ]
    assert level().slo is None


@pytest.mark.parametrize(
    ("levels", "checks_slo", "exit_code"),
    [
        pytest.param([{}], False, 0, id="measured"),
        pytest.param([{"good": 50}], False, 0, id="missed but not asked"),
        pytest.param([{"good": 98}, {"good": 50}], True, 1, id="missed"),
        pytest.param([{"good": 96}], True, 2, id="unclear"),
        pytest.param([{"reasons": (LAG,)}], False, 2, id="invalid"),
        pytest.param([{"reasons": (LAG,), "good": 50}], True, 2, id="an invalid level misses nothing"),
        pytest.param([{"reasons": (LAG,)}, {"good": 50}], True, 1, id="missed outranks invalid"),
        pytest.param([{}, {"complete": 0}], False, 2, id="one without an answer"),
        pytest.param([{"complete": 0}], False, 3, id="no answer at all"),
        pytest.param([], False, 3, id="nothing"),
        pytest.param([{**BOUND, "good": 50}], True, 1, id="missed because the server is too slow for the rate"),
        pytest.param([BOUND], False, 2, id="too slow for the rate"),
        pytest.param([{**BOUND, "decision": "misses", "look": 1}], False, 0, id="a search finds what is too much"),
        pytest.param([{"reasons": (LAG,), "look": 1}, {"look": 1}], False, 0, id="a look that was done again"),
        pytest.param([{"look": 1}, {"reasons": (LAG,), "look": 2}], False, 2, id="the last look is invalid"),
    ],
)
def test_exit_codes(level: Make, levels: list[dict[str, Any]], checks_slo: bool, exit_code: int) -> None:
    assert result(*(level(**changes) for changes in levels)).exit_code(checks_slo=checks_slo) == exit_code


def test_a_run_that_ended_early_could_not_run(level: Make) -> None:
    assert result(level(), failure="stopped by SIGINT").exit_code(checks_slo=False) == 3


def test_everything_wrong_is_told(level: Make) -> None:
    bad = level(
        reasons=(LAG,),
        good=60,
        complete=80,
        failed=20,
        outcomes={"complete": 80, "reset": 20},
        examples={"reset": "Connection reset by peer", "timeout": ""},
        window=Window(0, 1, "none", "TTFT drifts: ×3"),
        without_usage=3,
        unrefused=4,
        unsent=5,
        defects={"no_done": 2},
    )
    assert list(notes(result(bad, capacity="4 users misses it", failure="stopped by SIGINT"))) == [
        f"4 users INVALID: {LAG}",
        "4 users not steady: TTFT drifts: ×3; figures are of the whole measured part",
        "4 users: 3 answers had no usage, so their tokens are not counted and they have no TPOT",
        "4 users: 4 prompts longer than the context were answered, not refused",
        "4 users: 5 requests were due and never sent; for the SLO they are not good",
        "4 users: departures from the protocol: no_done ×2",
        "4 users: reset 20 of 100, e.g. Connection reset by peer",
        "4 users: timeout outside the window, e.g. without a word",
        "SLO: 95 % of requests with ttft ≤ 1 s",
        "capacity: 4 users misses it",
        "the run ended early: stopped by SIGINT",
    ]


def test_without_an_answer_only_the_failures_matter(level: Make) -> None:
    dead = level(complete=0, reasons=(LAG,), outcomes={"connect_error": 100}, examples={"connect_error": "refused"})
    assert list(notes(result(dead))) == ["4 users: connect_error 100 of 100, e.g. refused"]


def rendered(levels: list[LevelResult], width: int) -> list[str]:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(rich_table(results_sheet(levels)))
    return capture.get().splitlines()


def test_the_table_fits_a_terminal_and_cuts_nothing(level: Make) -> None:
    figures = Distribution(count=1, mean=1, smallest=1, p50=1.2345, p75=1, p90=1, p95=1, p99=0.05678, p999=1, largest=1)
    names = ("time_to_first_token", "scheduled_time_to_first_token", "time_per_output_token", "end_to_end")
    busy = level(
        "128 users",
        good=97,
        failed=3,
        complete=97,
        latencies={f"{name}_seconds": figures for name in names[:1] + names[2:]},
    )
    lines = rendered([busy, level("1 user")], 80)
    text = "\n".join(lines)
    assert "…" not in text
    assert max(map(len, lines)) <= 80
    assert "128" in text and "users" in text
    assert "1234/56.8" in text
    assert "97 %" in text and "unclear" in text and "3 failed" in text
    # without a value there is a dash, not a 0
    assert lines[-1].split()[:3] == ["1", "user", "100"] and "–" in lines[-1]
    open_loop = level("5 req/s", latencies={f"{name}_seconds": figures for name in names})
    assert "schedule" in "\n".join(rendered([open_loop], 100))


def test_in_a_pipe_it_looks_as_on_a_wide_terminal(level: Make) -> None:
    levels = [level("128 users", good=97, failed=3, complete=97), level("1 user", good=98)]
    plain = plain_lines(results_sheet(levels))
    assert plain == [line.rstrip() for line in rendered(levels, 200)]


def test_of_a_search_there_is_one_row_with_one_verdict_for_a_load(level: Make) -> None:
    looks = [
        level("4 users", users=4, good=96, decision="cannot_tell", look=1, complete=50),
        level("8 users", users=8, good=50, decision="misses", look=1, complete=60),
        level("4 users", users=4, good=91, decision="meets", look=2, complete=70),
    ]
    lines = plain_lines(results_sheet(looks))[2:]
    assert [line.split()[:3] for line in lines] == [["4", "users", "70"], ["2", "looks"], ["8", "users", "60"]]
    assert [line.split()[-1] for line in lines if "users" in line] == ["meets", "misses"]
    # what the last look's bounds say by themselves is not told beside the search's decision
    assert not re.search("met|missed|unclear", "\n".join(lines))


def test_no_usage_is_told_with_the_remedy(level: Make) -> None:
    bad = level(outcomes={"truncated": 100}, examples={"truncated": "no usage"}, complete=0)
    assert list(notes(result(bad))) == [
        "4 users: truncated 100 of 100, e.g. no usage; --no-usage takes such answers for complete"
    ]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "–"),
        (0.0, "0.00"),
        (0.00567, "5.67"),
        (0.009996, "10.0"),
        (0.0999, "99.9"),
        (0.09996, "100"),
        (12, "12000"),
    ],
)
def test_three_digits(seconds: float | None, shown: str) -> None:
    assert milliseconds(seconds) == shown
