"""Candidate against baseline: the ratio of medians with an interval that respects clustering.

Requests that end in the same second shared the same decode steps, so they are not independent. The unit
that is resampled is therefore a block: the requests of one phase that ended in the same
`block_seconds`. The interval is

    exp(ln r ± t(confidence, blocks - 1) · s),   r = median(candidate) / median(baseline)

of values relative to the baseline's step law at the request's batch (step_law.py), for TPOT; plain values where there
is no law. s is the bootstrap standard error of ln r, enlarged by sqrt(blocks / (blocks - 1)), and `blocks` is
the smaller block count of the two arms (a percentile interval is too narrow at ten blocks).

"Worse" needs three things: the lower bound above the limit; the candidate's median above the limit times
the median of the slower baseline phase (the baseline runs before and after the candidate, so a machine that
drifts through the three phases cannot look like a slow build); and `min_requests` in each arm.

The levels above 1 are also taken together (`pool`), which finds what no single level can.

The default limit 1.10 at 99.5 % was chosen by simulation without a step law, windows and request rates as in the
default run on two cores, 900 levels each (`b` is the noise from second to second, `p` from phase to phase). Share
"worse":

    b     p     equal builds, one level / pooled     1.3 times as slow, one level / pooled
    5 %   5 %   0.1 % / 0                            74 % / 99 %
    15 %  5 %   0     / 0                            19 % / 74 %
    10 %  10 %  1.8 % / 1.7 %                        39 % / 78 %

A machine that differs by 10 % from one phase to the next needs longer windows, or a limit of its own.
tests/gate/test_compare.py holds the first two rows.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from enum import StrEnum

import numpy as np
from pydantic import BaseModel, ConfigDict
from scipy import stats

from pdwatch.gate.policy import RegressionPolicy


class ComparisonVerdict(StrEnum):
    """What the interval allows to be said about a limit."""

    SAME = "same"
    WORSE = "worse"
    CANNOT_TELL = "cannot tell"


class Observation(BaseModel):
    """One request's value, with the phase it ran in and when it ended (seconds on any one clock)."""

    model_config = ConfigDict(frozen=True)

    phase: int
    ended_seconds: float
    value: float
    #: what the baseline's step law gives at this request's batch; ratios are of value / expected
    expected: float = 1.0

    @property
    def relative(self) -> float:
        """The value in units of what was expected."""
        return self.value / self.expected


class Comparison(BaseModel):
    """Ratio candidate / baseline of one metric at one level; None where nothing can be computed.

    `at_equal_batch` says that the ratio is of TPOT relative to the baseline's step law. The medians are always the
    plain ones, as the clients saw them.
    """

    model_config = ConfigDict(frozen=True)

    metric: str
    verdict: ComparisonVerdict
    reason: str
    limit: float | None
    confidence: float
    candidate_requests: int
    baseline_requests: int
    candidate_median_seconds: float | None = None
    baseline_median_seconds: float | None = None
    ratio: float | None = None
    lower: float | None = None
    upper: float | None = None
    ratio_to_slowest_phase: float | None = None
    log_error: float | None = None
    at_equal_batch: bool = False
    degrees_of_freedom: int | None = None


def compare(
    metric: str,
    candidate: Sequence[Observation],
    baseline: Sequence[Observation],
    policy: RegressionPolicy,
    limit: float | None,
    seed: int,
) -> Comparison:
    """Compare one metric of two arms; both bounds are one-sided at `policy.confidence`.

    With `limit` None the ratio and interval are computed and the verdict is "cannot tell".
    """
    undecided = Comparison(
        metric=metric,
        verdict=ComparisonVerdict.CANNOT_TELL,
        reason="not enough requests",
        limit=limit,
        confidence=policy.confidence,
        candidate_requests=len(candidate),
        baseline_requests=len(baseline),
    )
    fewest = min(len(candidate), len(baseline))
    if fewest < policy.min_requests:
        return undecided.model_copy(
            update={"reason": f"{fewest} requests in one arm, {policy.min_requests} needed: lengthen the window"}
        )
    medians = {
        "candidate_median_seconds": float(np.median([item.value for item in candidate])),
        "baseline_median_seconds": float(np.median([item.value for item in baseline])),
    }
    candidate_median, baseline_median = _median(candidate), _median(baseline)
    candidate_blocks = _blocks(candidate, policy.block_seconds)
    baseline_blocks = _blocks(baseline, policy.block_seconds)
    fewest_blocks = min(len(candidate_blocks), len(baseline_blocks))
    if fewest_blocks < 3 or candidate_median <= 0 or baseline_median <= 0:
        reason = f"{fewest_blocks} blocks of {policy.block_seconds:g} s in one arm, 3 needed: lengthen the window"
        return undecided.model_copy(update={"reason": reason, **medians})
    ratio = candidate_median / baseline_median
    error = _log_ratio_error(candidate_blocks, baseline_blocks, policy.resamples, seed)
    error *= math.sqrt(fewest_blocks / (fewest_blocks - 1))
    slowest_phase = max(_median(group) for group in _by_phase(baseline).values())
    return _concluded(undecided, ratio, candidate_median / slowest_phase, error, fewest_blocks - 1).model_copy(
        update=medians
    )


def pool(comparisons: Sequence[Comparison]) -> Comparison | None:
    """Levels taken together: the mean of ln r weighted by 1 / s², with error 1 / sqrt(Σ 1 / s²).

    A slow-down too small for any one level's interval shows here. None unless two levels have a ratio.
    """
    usable = [each for each in comparisons if each.ratio and each.log_error and each.ratio_to_slowest_phase]
    if len(usable) < 2:
        return None
    weights = [1 / (each.log_error or 1) ** 2 for each in usable]

    def mean(values: Iterable[float]) -> float:
        weighted = (weight * math.log(value) for weight, value in zip(weights, values, strict=True))
        return math.exp(sum(weighted) / sum(weights))

    empty = usable[0].model_copy(
        update={
            "candidate_requests": sum(each.candidate_requests for each in usable),
            "baseline_requests": sum(each.baseline_requests for each in usable),
            "candidate_median_seconds": None,
            "baseline_median_seconds": None,
        }
    )
    return _concluded(
        empty,
        mean(each.ratio or 1 for each in usable),
        mean(each.ratio_to_slowest_phase or 1 for each in usable),
        1 / math.sqrt(sum(weights)),
        sum(each.degrees_of_freedom or 0 for each in usable),
    )


def _concluded(
    empty: Comparison, ratio: float, ratio_to_slowest_phase: float, error: float, degrees_of_freedom: int
) -> Comparison:
    reach = float(stats.t.ppf(empty.confidence, degrees_of_freedom)) * error
    lower, upper = ratio * math.exp(-reach), ratio * math.exp(reach)
    verdict, reason = _judge(ratio_to_slowest_phase, lower, upper, empty.limit)
    return empty.model_copy(
        update={
            "verdict": verdict,
            "reason": reason,
            "ratio": ratio,
            "lower": lower,
            "upper": upper,
            "ratio_to_slowest_phase": ratio_to_slowest_phase,
            "log_error": error,
            "degrees_of_freedom": degrees_of_freedom,
        }
    )


def _judge(
    ratio_to_slowest_phase: float, lower: float, upper: float, limit: float | None
) -> tuple[ComparisonVerdict, str]:
    if limit is None:
        return ComparisonVerdict.CANNOT_TELL, "shown, not gated"
    if lower > limit and ratio_to_slowest_phase > limit:
        return ComparisonVerdict.WORSE, f"at least ×{lower:.2f}, limit ×{limit:.2f}"
    if lower > limit:
        return ComparisonVerdict.CANNOT_TELL, "the baseline itself drifted by as much between its two phases"
    if upper <= limit:
        return ComparisonVerdict.SAME, f"at most ×{upper:.2f}, limit ×{limit:.2f}"
    return ComparisonVerdict.CANNOT_TELL, f"between ×{lower:.2f} and ×{upper:.2f}, limit ×{limit:.2f}"


def _by_phase(observations: Iterable[Observation]) -> dict[int, list[Observation]]:
    phases: dict[int, list[Observation]] = defaultdict(list)
    for observation in observations:
        phases[observation.phase].append(observation)
    return phases


def _median(observations: Iterable[Observation]) -> float:
    return float(np.median([observation.relative for observation in observations]))


def _blocks(observations: Iterable[Observation], block_seconds: float) -> list[np.ndarray]:
    blocks: dict[tuple[int, int], list[float]] = defaultdict(list)
    for observation in observations:
        blocks[observation.phase, int(observation.ended_seconds // block_seconds)].append(observation.relative)
    return [np.asarray(blocks[key]) for key in sorted(blocks)]


def _log_ratio_error(
    candidate: Sequence[np.ndarray], baseline: Sequence[np.ndarray], resamples: int, seed: int
) -> float:
    """Bootstrap standard error of ln(median candidate / median baseline) over blocks."""
    generator = np.random.Generator(np.random.PCG64(random.Random(seed).getrandbits(64)))
    return float(np.std(_log_medians(candidate, resamples, generator) - _log_medians(baseline, resamples, generator)))


def _log_medians(blocks: Sequence[np.ndarray], resamples: int, generator: np.random.Generator) -> np.ndarray:
    """ln of the median of each resample of whole blocks.

    A resample is a multiplicity per block; its median is the value at which the cumulated weight of the
    sorted values passes one half, so no values are copied.
    """
    values = np.concatenate(blocks)
    owners = np.repeat(np.arange(len(blocks)), [len(block) for block in blocks])
    order = np.argsort(values, kind="stable")
    multiplicities = generator.multinomial(len(blocks), np.full(len(blocks), 1 / len(blocks)), size=resamples)
    weights = np.cumsum(multiplicities[:, owners[order]], axis=1)
    positions = np.argmax(weights * 2 >= weights[:, -1:], axis=1)
    return np.asarray(np.log(values[order][positions]))
