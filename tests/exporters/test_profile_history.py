from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pdwatch.exporters import Exporter, HistoryInvalid
from pdwatch.exporters.profile import HistoryFile, Profile, ProfileSource
from pdwatch.exporters.profile.history import FEWEST_FOR_BASELINE
from pdwatch.exporters.profile.profile import GroupTime, StepTimes


def profile(at: float, indexer: float = 0.01, target: str = "decode", rank: str = "tp0", **changes: object) -> Profile:
    """A step of 100 ms of which the indexer takes its share and MoE the rest."""

    def group(share: float) -> GroupTime:
        return GroupTime(share=share, step_seconds=share / 10, busy_step_seconds=share / 10, launches_per_step=2.0)

    steps = StepTimes(
        count=30, left_out=0, stage="DECODE", mean_batch=8.0, mean_seconds=0.1, p50_seconds=0.1, p99_seconds=0.12
    )
    whole = {
        "target": target,
        "rank": rank,
        "unix_seconds": at,
        "boundary": "span",
        "seconds": 3.0,
        "steps": steps,
        "overlap": 0.1,
        "groups": {"indexer": group(indexer), "moe": group(1 - indexer)},
        "kernels": (),
    }
    return Profile.model_validate(whole | changes)


def exposition(source: ProfileSource) -> str:
    return Exporter("profile", source).scrape().exposition("", False).body.decode()


def test_the_indexer_went_from_one_percent_to_sixty_nine(tmp_path: Path) -> None:
    history = HistoryFile(tmp_path / "profiles.jsonl")
    source = ProfileSource(history)
    for hour in range(FEWEST_FOR_BASELINE):
        history.append([profile(3600.0 * hour, 0.01 + 0.001 * hour)])
        # too few to compare with
        assert "baseline" not in exposition(source)
    history.append([profile(1e6, 0.69)])
    text = exposition(source)
    assert 'pdwatch_profile_share_ratio{group="indexer",rank="tp0",target="decode"} 0.69' in text
    assert 'pdwatch_profile_baseline_share_ratio{group="indexer",rank="tp0",target="decode"} 0.011' in text
    assert 'pdwatch_profile_group_step_seconds{group="indexer",rank="tp0",target="decode"} 0.06899' in text
    assert 'pdwatch_profile_timestamp_seconds{rank="tp0",target="decode"} 1e+06' in text
    assert 'pdwatch_profile_steps{boundary="span",rank="tp0",stage="DECODE",target="decode"} 30.0' in text
    assert 'pdwatch_profile_history_profiles{rank="tp0",target="decode"} 4.0' in text


def test_what_a_profile_does_not_know_is_absent(tmp_path: Path) -> None:
    history = HistoryFile(tmp_path / "profiles.jsonl")
    source = ProfileSource(history)
    text = exposition(source)
    assert "pdwatch_exporter_up 1.0" in text and "pdwatch_profile" not in text
    unknown = GroupTime(share=1.0, step_seconds=None, busy_step_seconds=None, launches_per_step=None)
    history.append([profile(1.0, boundary="none", steps=None, groups={"moe": unknown})])
    text = exposition(source)
    assert "pdwatch_profile_share_ratio{" in text
    assert "step_seconds{" not in text and "batch" not in text and "per_step" not in text


def test_series_are_kept_apart(tmp_path: Path) -> None:
    history = HistoryFile(tmp_path / "profiles.jsonl")
    history.append([profile(5.0, 0.5), profile(5.0, 0.2, rank="tp1"), profile(4.0, 0.3, target="prefill")])
    # a trace from earlier, profiled later, is not the latest
    history.append([profile(1.0, 0.9)])
    assert [(found.target, found.rank, found.groups["indexer"].share) for found in history.read().latest()] == [
        ("decode", "tp0", 0.5),
        ("decode", "tp1", 0.2),
        ("prefill", "tp0", 0.3),
    ]


def test_what_one_process_appends_another_reads(tmp_path: Path) -> None:
    reader, writer = (HistoryFile(tmp_path / "profiles.jsonl") for _ in range(2))
    for count in range(1, 4):
        writer.append([profile(float(count))])
        assert len(reader.read().profiles["decode", "tp0"]) == count
        assert reader.read() is reader.read()


def test_writers_take_turns(tmp_path: Path) -> None:
    path = tmp_path / "profiles.jsonl"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: HistoryFile(path).append([profile(float(number))]), range(40)))
    history = HistoryFile(path).read()
    assert (len(history.profiles["decode", "tp0"]), history.damaged) == (40, 0)


def test_the_history_stays_bounded(tmp_path: Path) -> None:
    history = HistoryFile(tmp_path / "profiles.jsonl", kept=10)
    for number in range(45):
        history.append([profile(float(number))])
        assert len(history.read().profiles["decode", "tp0"]) <= 20
    history.append([profile(1.0, rank="tp1")])
    found = history.read().profiles
    assert found["decode", "tp0"][-1].unix_seconds == 44.0
    # a series with few profiles loses none for one with many
    assert len(found["decode", "tp1"]) == 1


@pytest.mark.parametrize(
    "torn", [b'{"format": 1, "target": "de', b"\x00\xff\n", b"not json\n", b'{"format": 2}\n'], ids=str
)
def test_a_damaged_line_costs_only_itself(torn: bytes, tmp_path: Path) -> None:
    path = tmp_path / "profiles.jsonl"
    history = HistoryFile(path)
    history.append([profile(1.0)])
    with path.open("ab") as file:
        file.write(torn)
    history.append([profile(2.0)])
    found = history.read()
    assert (len(found.profiles["decode", "tp0"]), found.damaged) == (2, 1)
    text = exposition(ProfileSource(history))
    assert 'pdwatch_exporter_field_errors_total{field="history_line",reason="invalid"} 1.0' in text


def test_a_history_that_cannot_be_read_is_a_failed_collection(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    source = ProfileSource(HistoryFile(tmp_path / "folder"))
    text = exposition(source)
    assert "pdwatch_exporter_up 0.0" in text
    with pytest.raises(HistoryInvalid, match="--history"):
        HistoryFile(tmp_path / "folder").append([profile(1.0)])


def test_a_line_is_plain_json(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "profiles.jsonl"
    HistoryFile(path).append([profile(1.0)])
    assert json.loads(path.read_text())["groups"]["moe"]["share"] == 0.99
