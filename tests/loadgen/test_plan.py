"""Plans: one line for each way of getting one wrong, and the numbering of tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pdwatch.loadgen import Label, Phase, Plan, PlanError, load_plan
from pdwatch.loadgen.prepared import Preparer
from pdwatch.loadgen.request import Cancel, cancel_for
from pdwatch.loadgen.share import Share
from pdwatch.loadgen.sources import open_source
from pdwatch.loadgen.target import Target


def plan(**changes: Any) -> dict[str, Any]:
    phases = [("baseline", 4), ("candidate", 4), ("baseline", 4), ("candidate", 16)]
    return {
        "seed": 1,
        "targets": {"candidate": "http://127.0.0.1:8000", "baseline": "http://127.0.0.1:8001"},
        "model": "m",
        "phases": [{"index": index, "arm": arm, "level": level} for index, (arm, level) in enumerate(phases)],
        **changes,
    }


def one_phase(**changes: Any) -> list[dict[str, Any]]:
    return [{"index": 0, "arm": "candidate", "level": 1, **changes}]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"phases": one_phase(level=0)}, "phases[0].level is 0: Input should be greater than or equal to 1"),
        ({"phases": one_phase(arm="other")}, "phases[0].arm is 'other', which targets does not name"),
        ({"phases": one_phase(index=3)}, "phases[0].index is 3; number the phases 0, 1, 2, …"),
        ({"phases": one_phase(window_seconds=0)}, "phases[0].window_seconds is 0: Input should be greater than 0"),
        ({"phases": []}, "phases is []: Tuple should have at least 1 item"),
        ({"phases": [{**one_phase()[0], "index": n} for n in range(1001)]}, "more than 1000 phases of level 1"),
        ({"cancel_rat": 0.1}, "cancel_rat is 0.1: Extra inputs are not permitted"),
        ({"cancel_rate": 2}, "cancel_rate is 2: Input should be less than or equal to 1"),
        ({"phases": one_phase(requests=0)}, "phases[0].requests is 0: Input should be greater than or equal to 1"),
        (
            {"phases": one_phase(load={"kind": "waves", "sizes": [1, 2]})},
            "load.sizes has a wave of 2; give a level that is not below it",
        ),
        (
            {"phases": one_phase(load={"kind": "open", "rate_per_second": 1, "burstiness": 0.5})},
            "burstiness is 0.5 with poisson arrivals; make them gamma",
        ),
        ({"phases": one_phase(), "search": {}}, "search needs an slo; give the limits that a load must keep to"),
        (
            {"phases": one_phase(), "search": {"kind": "rate"}, "slo": {"ttft_seconds": 1}},
            "search for rate repeats one phase; give one, its load open",
        ),
        (
            {
                "phases": one_phase(load={"kind": "replay", "path": "t.jsonl"}),
                "source": {"kind": "openai_requests", "path": "t.jsonl"},
            },
            "source.order is 'shuffled' with a replay; make it 'file'",
        ),
        ({"proxy": "https://p"}, "proxy 'https://p' wants TLS to itself; give one at http://HOST:PORT"),
        ({"targets": {"candidate": "ftp://h"}}, "target 'ftp://h' is not an http URL; write it as http://HOST:PORT"),
        ({"targets": {"candidate": "http://h:99999"}}, "Port out of range"),
        ({"targets": {"candidate": "http://me:pw@h"}}, "target on h holds credentials"),
        ({"targets": {"candidate": "http://h/\r\nX: 1"}}, "holds characters that no URL may hold"),
    ],
)
def test_bad_plans(tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan(**changes)))
    with pytest.raises(PlanError) as caught:
        load_plan(path)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", '"x"'])
def test_no_plan(tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(PlanError, match=r"plan .*plan\.json: the whole"):
        load_plan(tmp_path / "plan.json")
    with pytest.raises(PlanError, match="cannot be read"):
        load_plan(tmp_path / "none.json")


def test_task_numbers() -> None:
    four_b, four_c, four_b_again, sixteen = Plan(**plan()).phases
    numbers = [
        Plan(**plan()).task_number(phase, label, 7)
        for phase, label in [
            (four_b, Label.MEASURED),
            (four_c, Label.MEASURED),
            (four_c, Label.WARMUP),
            (four_b_again, Label.MEASURED),
            (sixteen, Label.MEASURED),
        ]
    ]
    # level, pair, label and sequence in decimal
    assert numbers == [4_000_0_000007, 4_000_0_000007, 4_000_1_000007, 4_001_0_000007, 16_000_0_000007]
    with pytest.raises(PlanError, match="shorten its window"):
        Plan(**plan()).task_number(four_b, Label.MEASURED, 1_000_000)


@pytest.mark.parametrize(
    ("url", "authority", "prefix", "is_tls"),
    [
        ("http://h:80", "h", "", False),
        ("http://h", "h", "", False),
        ("https://h", "h", "", True),
        ("https://h:8443/base/v1/", "h:8443", "/base", True),
        ("http://[::1]:8000", "[::1]:8000", "", False),
    ],
)
def test_targets(url: str, authority: str, prefix: str, is_tls: bool) -> None:
    target = Target.parse(url)
    assert (target.authority, target.prefix, target.is_tls) == (authority, prefix, is_tls)


def test_bearer_token(monkeypatch: pytest.MonkeyPatch) -> None:
    named = Plan(**plan(bearer_token_environment="TOKEN_FOR_TEST"))
    with pytest.raises(PlanError, match="environment variable TOKEN_FOR_TEST holds no bearer token"):
        named.bearer_token()
    monkeypatch.setenv("TOKEN_FOR_TEST", "abc")
    assert named.bearer_token() == "abc"
    assert "abc" not in named.model_dump_json()
    assert Plan(**plan()).bearer_token() is None


def test_a_share_of_the_wait_becomes_seconds() -> None:
    # 0.75 of a wait of 0.5 s, exact in binary
    assert Cancel(after_wait_share=0.75).timed(0.5) == Cancel(after_seconds=0.375)
    assert Cancel(after_reads=2).timed(0.4) == Cancel(after_reads=2)


def test_cancels() -> None:
    cancels = [cancel_for(3, number, 0.1) for number in range(2000)]
    assert cancels == [cancel_for(3, number, 0.1) for number in range(2000)]
    chosen = [cancel for cancel in cancels if cancel is not None]
    # 2,000 draws at 0.1: four standard deviations are 4 · √(2000 · 0.09) = 54
    assert len(chosen) == pytest.approx(200, abs=54)
    shares = [cancel.after_wait_share for cancel in chosen if cancel.after_wait_share is not None]
    assert all(0.1 <= share <= 1.1 for share in shares)
    assert 0 < len(shares) < len(chosen)
    assert all(cancel.after_reads in range(1, 9) for cancel in chosen if cancel.after_wait_share is None)
    assert not any(cancel_for(3, number, 0.0) for number in range(100))


def test_prepared_requests_are_reproducible() -> None:
    run = Plan(**plan())
    preparer = Preparer(run, open_source(run), run.phases[1], 0, None)
    one, again, other = (preparer.first(label, 3)[0] for label in (Label.WARMUP, Label.WARMUP, Label.MEASURED))
    assert one == again
    assert one.message != other.message
    assert b"X-Request-ID: candidate-1-warmup-3\r\n" in one.message


@pytest.mark.parametrize(("index", "of"), [(0, 1), (0, 3), (1, 3), (2, 3)])
def test_shares(index: int, of: int) -> None:
    share = Share(index, of)
    own = [number for number in range(10) if share.has(number)]
    assert share.count(10) == len(own)
    assert [share.number(place) for place in range(len(own))] == own


@pytest.mark.parametrize(
    ("load", "seconds"),
    [
        ({"kind": "closed"}, 2),
        ({"kind": "closed", "start": "staggered", "stagger_seconds": 0.5}, 3.5),
        ({"kind": "ramp", "over_seconds": 6}, 6),
        ({"kind": "ramp", "over_seconds": 1}, 2),
        ({"kind": "ramp", "over_seconds": 6, "from_users": 8}, 2),
        ({"kind": "open", "rate_per_second": 1}, 2),
    ],
)
def test_the_measured_part_begins_when_all_users_are_there(load: dict[str, Any], seconds: float) -> None:
    phase = Phase.model_validate({"index": 0, "arm": "candidate", "level": 8, "warmup_seconds": 2, "load": load})
    assert phase.lead_seconds == seconds
