"""First divergence: where, by how much, and what a near-tie excuses."""

from __future__ import annotations

import pytest

from pdwatch.correctness import AnswerScore, PositionScore, Signature
from pdwatch.correctness.divergence import divergence_signature, find_divergence


def agree(token: int) -> PositionScore:
    return PositionScore(token, -0.1, ((token, -0.1), (1, -3.0)))


def stray(token: int, delta: float, ranked: bool = True) -> PositionScore:
    """The reference's choice is 65 at −0.1 nats; `token` lies `delta` below."""
    logprob = round(-0.1 - delta, 5)
    return PositionScore(token, logprob, ((65, -0.1), (token if ranked else 1, logprob)))


def text(tokens):
    return "".join(chr(token) for token in tokens)


def find(*positions):
    return find_divergence(AnswerScore(positions), 0.5, text)


def test_full_agreement_is_no_divergence():
    assert find(agree(97), agree(98)) is None


def test_an_exact_tie_is_either_tokens():
    assert find(PositionScore(98, -0.7, ((97, -0.7), (98, -0.7)))) is None


@pytest.mark.parametrize(
    ("delta", "ranked", "benign"),
    [(0.1, True, True), (0.5, True, True), (0.51, True, False), (0.1, False, False), (6.0, False, False)],
)
def test_near_tie_rule(delta, ranked, benign):
    evidence = find(agree(97), stray(98, delta, ranked), agree(99))
    assert evidence is not None
    assert (evidence.position, evidence.benign) == (1, benign)
    assert evidence.delta_nats == pytest.approx(delta)
    assert evidence.rank == (2 if ranked else None)
    assert (evidence.token_text, evidence.reference_text) == ("b", "A")
    assert (evidence.text_before, evidence.text_after) == ("a", "c")


def test_the_first_unexplained_position_decides_and_the_first_of_all_is_kept():
    evidence = find(agree(97), stray(98, 0.2), agree(99), stray(100, 4.0), stray(101, 5.0))
    assert evidence is not None
    assert (evidence.first_position, evidence.position, evidence.token_text) == (1, 3, "d")
    assert (evidence.diverging_positions, evidence.unexplained_positions, evidence.scored_positions) == (3, 2, 5)
    assert not evidence.benign


@pytest.mark.parametrize(
    ("before", "rank", "signature"),
    [(0, 2, Signature.FIRST_TOKEN), (0, None, Signature.FIRST_TOKEN), (3, 2, Signature.WRONG_VALUE)],
    ids=["first", "first, unranked", "later"],
)
def test_signature(before, rank, signature):
    others = 20 if rank is None else rank - 2
    top = ((65, -0.1), *((500 + place, -3.0) for place in range(others)), *([] if rank is None else [(98, -4.1)]))
    evidence = find(*[agree(97)] * before, PositionScore(98, -4.1, top), agree(97))
    assert evidence is not None
    assert divergence_signature(evidence) is signature
