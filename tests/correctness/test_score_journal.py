"""The score journal: what is stored comes back, also after a kill in the middle of a write."""

from __future__ import annotations

import pytest
import zstandard

from pdwatch.correctness import AnswerScore, JournalError, OwnAnswer, PositionScore, ScoreJournal
from pdwatch.correctness.own_answer import answer_key
from pdwatch.correctness.score_journal import score_key


def score(token: int) -> AnswerScore:
    return AnswerScore(
        (PositionScore(token, -1.5, ((7, -0.25), (token, -1.5))), PositionScore(257, 0.0, ((257, 0.0),)))
    )


def test_scores_come_back_and_facts_stay_the_first(tmp_path):
    path = tmp_path / "reference.jsonl.zst"
    with ScoreJournal(path) as journal:
        journal.write_facts({"url": "http://a"})
        journal.put("one", 10, score(1))
        journal.put("two", 10, score(2))
        journal.put("one", 10, score(3))
    with ScoreJournal(path) as journal:
        journal.write_facts({"url": "http://b"})
        journal.put("three", 10, score(3))
    with ScoreJournal(path, read_only=True) as journal:
        assert [journal.get(key) for key in ("one", "two", "three", "four")] == [score(1), score(2), score(3), None]
        assert journal.facts == {"url": "http://a"}
        assert len(journal) == 3


def test_own_answers_come_back_beside_scores(tmp_path):
    path = tmp_path / "reference.jsonl.zst"
    answers = {
        "calls": OwnAnswer("", (("record", '{"a": "東京"}'), ("cancel", "{}")), 0.25),
        "text": OwnAnswer("fjord\0", (), None),
    }
    with ScoreJournal(path) as journal:
        journal.put("one", 10, score(1))
        for key, answer in answers.items():
            journal.put_answer(key, answer)
        journal.put_answer("text", answers["calls"])
    with ScoreJournal(path, read_only=True) as journal:
        assert {key: journal.get_answer(key) for key in answers} == answers
        assert (journal.get("one"), journal.get_answer("three")) == (score(1), None)


def test_the_key_of_a_request_knows_nothing_of_its_transport():
    asked = answer_key('{"model": "m", "seed": 1}')
    assert asked == answer_key('{"seed": 1, "model": "m", "stream": true, "stream_options": {"include_usage": true}}')
    assert asked != answer_key('{"model": "m", "seed": 2}')


def test_every_cut_of_the_last_frame_loses_that_frame_only(tmp_path):
    path = tmp_path / "reference.jsonl.zst"
    with ScoreJournal(path) as journal:
        journal.put("one", 10, score(1))
        whole = path.stat().st_size
        journal.put("two", 10, score(2))
    data = path.read_bytes()
    for end in range(whole, len(data)):
        path.write_bytes(data[:end])
        with ScoreJournal(path, read_only=True) as journal:
            assert (journal.get("one"), journal.get("two")) == (score(1), None)
    # opened for writing, the rest of the cut frame goes, so that later frames can be read.
    with ScoreJournal(path) as journal:
        journal.put("three", 10, score(3))
    with ScoreJournal(path, read_only=True) as journal:
        assert (journal.get("one"), journal.get("three")) == (score(1), score(3))


@pytest.mark.parametrize(
    "data",
    [b"not a journal at all", zstandard.compress(b"[]"), zstandard.compress(b"{}"), zstandard.compress(b"no JSON")],
    ids=["no zstd", "a list", "no key", "no JSON"],
)
def test_another_file_is_refused(data, tmp_path):
    path = tmp_path / "reference.jsonl.zst"
    path.write_bytes(data)
    with pytest.raises(JournalError, match="remove it and score again"):
        ScoreJournal(path)
    assert path.read_bytes() == data


def test_a_record_larger_than_a_page_of_reading_is_found(tmp_path):
    path = tmp_path / "reference.jsonl.zst"
    many = AnswerScore(
        tuple(PositionScore(index, -index / 7, ((index * 7919 % 997, -0.1),)) for index in range(1, 20_000))
    )
    with ScoreJournal(path) as journal:
        journal.put("many", 10, many)
        journal.put("one", 10, score(1))
    with ScoreJournal(path, read_only=True) as journal:
        assert (journal.get("many"), journal.get("one")) == (many, score(1))


def test_the_key_knows_where_the_prompt_ends():
    assert score_key([1, 2], [3]) == score_key([1, 2], [3])
    assert len({score_key([1, 2], [3]), score_key([1], [2, 3]), score_key([1, 2], [4]), score_key([], [1, 2, 3])}) == 4
