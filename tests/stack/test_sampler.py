"""Sampling: greedy, seeded draws, top-p, log-probabilities."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from pdwatch.stack.embedded.request import Request, SamplingParameters
from pdwatch.stack.embedded.sampler import Sampler
from pdwatch.stack.embedded.sequence import SequenceState

# softmax of these is 0.5, 0.25, 0.125, 0.125.
LOGITS = torch.tensor([[math.log(0.5), math.log(0.25), math.log(0.125), math.log(0.125)]])


def state(position: int = 1, rid: str = "r", **sampling: Any) -> SequenceState:
    """A sequence of `position` tokens."""
    return SequenceState.of(Request(rid, [0] * position, SamplingParameters(**sampling)))


def draws(count: int, **sampling: Any) -> list[int]:
    """What is drawn at positions 1..count."""
    sampler = Sampler(seed=0)
    return [sampler.choose(LOGITS, [state(position, **sampling)])[0] for position in range(1, count + 1)]


def test_greedy_takes_the_best() -> None:
    assert Sampler(0).choose(torch.cat([LOGITS, LOGITS.flip(1)]), [state(), state()]) == [0, 3]


def test_draws_follow_the_probabilities() -> None:
    tokens = draws(2000, temperature=1.0, seed=1)

    # expected 1000, 500, 250, 250; five standard deviations of the first are 5 * sqrt(2000 * 0.25) = 112.
    assert tokens.count(0) == pytest.approx(1000, abs=112)
    assert tokens.count(1) == pytest.approx(500, abs=97)
    assert tokens.count(2) == pytest.approx(250, abs=74)


def test_a_draw_does_not_depend_on_its_batch() -> None:
    sampler = Sampler(seed=0)
    alone = [sampler.choose(LOGITS, [state(place, temperature=1.0, seed=4)])[0] for place in range(1, 20)]
    batch = [state(place, temperature=1.0, seed=4) for place in range(1, 20)]

    assert sampler.choose(LOGITS.expand(19, -1), batch) == alone


def test_seeds_and_ids_differ() -> None:
    by_seed = {tuple(draws(30, temperature=1.0, seed=seed)) for seed in range(5)}
    by_id = {tuple(draws(30, temperature=1.0, rid=rid)) for rid in "abcde"}

    assert len(by_seed) == len(by_id) == 5


@pytest.mark.parametrize(
    ("top_p", "possible"),
    [(0.1, {0}), (0.5, {0}), (0.6, {0, 1}), (0.75, {0, 1}), (0.8, {0, 1, 2}), (1.0, {0, 1, 2, 3})],
)
def test_top_p_keeps_the_smallest_set(top_p: float, possible: set[int]) -> None:
    assert set(draws(300, temperature=1.0, top_p=top_p, seed=2)) == possible


@pytest.mark.parametrize(("temperature", "greedy"), [(0.0, True), (9e-7, True), (1e-6, False), (1.0, False)])
def test_a_temperature_below_a_millionth_is_greedy(temperature: float, greedy: bool) -> None:
    # two best tokens: greedy takes the first, a draw comes upon both.
    tied = torch.zeros(1, 2)
    sampler = Sampler(seed=0)
    chosen = {sampler.choose(tied, [state(position, temperature=temperature)])[0] for position in range(1, 101)}
    assert chosen == ({0} if greedy else {0, 1})
    request = Request("r", [0], SamplingParameters(temperature=temperature), return_logprob=True)
    (entry,) = sampler.logprobs(LOGITS, [1], request)
    # greedy scores at a temperature of 1, as SGLang does; a division by 1e-40 would have left no number.
    assert math.isfinite(entry.logprob)
    assert (entry.logprob == pytest.approx(math.log(0.25), abs=1e-6)) is (greedy or temperature == 1.0)


def test_a_low_temperature_is_almost_greedy() -> None:
    assert set(draws(200, temperature=0.02, seed=3)) == {0}


def test_logprobs_are_natural_and_ordered() -> None:
    request = Request("r", [0], return_logprob=True, top_logprobs=2, token_ids_logprob=(3,))

    (entry,) = Sampler(0).logprobs(LOGITS, [1], request)

    assert entry.token == 1
    assert entry.logprob == pytest.approx(math.log(0.25), abs=1e-6)
    assert [token for _, token in entry.top] == [0, 1]
    assert [value for value, _ in entry.top] == pytest.approx([math.log(0.5), math.log(0.25)], abs=1e-6)
    assert entry.chosen[0][0] == pytest.approx(math.log(0.125), abs=1e-6)
    assert entry.chosen[0][1] == 3
