"""The sentences of a verdict, in one place so that terminal, JUnit and report say the same."""

from __future__ import annotations

from collections.abc import Sequence

from pdwatch.gate.compare import Comparison, ComparisonVerdict
from pdwatch.gate.percentage import percent
from pdwatch.gate.verdict import Check, LevelVerdict, Rate, Result, SignatureSummary

MEANING = {
    "wrong_value": "a value the prompt dictated came back different",
    "leak": "an answer contained another request's nonce",
    "first_token": "the first output token is not the reference's",
    "garbled": "the answer is not text a healthy model writes",
    "truncated": "the stream ended without finish_reason or [DONE]",
    "lost_bytes": "fewer tokens arrived than the server counted",
    "slow_decode": "TPOT is above the limit against the baseline",
    "slow_first_token": "TTFT is above the limit against the baseline",
    "error": "the request ended in an error",
    "protocol": "the stream broke the wire protocol",
}


def headline(
    result: Result,
    reasons: Sequence[Check],
    levels: Sequence[LevelVerdict],
    signatures: Sequence[SignatureSummary],
    overall: Rate,
    pooled: Comparison | None,
) -> str:
    """One sentence that says what happened and from which level on."""
    if result is Result.PASS:
        names = ", ".join(str(level.level) for level in levels)
        plural = "s" if len(levels) != 1 else ""
        return (
            f"No corruption seen in {overall.trials} scored answers at level{plural} {names}"
            f"{_slow_down_words(levels, pooled)}."
        )
    if result is Result.INCONCLUSIVE:
        return f"The run cannot vouch for the deployment: {_at(reasons[0])}{reasons[0].text}."
    if not signatures:
        return f"{_at(reasons[0])}{reasons[0].text}."
    begins = min(signature.first_level for signature in signatures)
    clean = [level.level for level in levels if level.result is Result.PASS and level.level < begins]
    sentences = "; ".join(_signature_sentence(signature, levels) for signature in signatures)
    below = f" Level{'s' if len(clean) > 1 else ''} {', '.join(map(str, clean))} clean." if clean else ""
    return f"{sentences}.{below}"


def _slow_down_words(levels: Sequence[LevelVerdict], pooled: Comparison | None) -> str:
    gated = [item for level in levels for item in level.comparisons if item.metric == "tpot" and item.upper is not None]
    told = pooled if pooled is not None else (gated[-1] if gated else None)
    if told is None or told.upper is None:
        return ""
    how = " at equal batch" if told.at_equal_batch else ""
    if told.verdict is ComparisonVerdict.SAME:
        return f", and TPOT{how} is at most ×{told.upper:.2f} of the baseline's"
    return f"; no slow-down shown, though up to ×{told.upper:.2f}{how} is not excluded"


def _signature_sentence(signature: SignatureSummary, levels: Sequence[LevelVerdict]) -> str:
    level = next(level for level in levels if level.level == signature.first_level)
    for comparison in level.comparisons:
        metric = {"slow_decode": "tpot", "slow_first_token": "ttft"}.get(signature.signature)
        if comparison.metric == metric and comparison.ratio is not None:
            return f"{signature.signature} from level {level.level}: {metric.upper()} ×{comparison.ratio:.2f}"
    count = level.candidate.signatures.get(signature.signature, 0)
    return f"{signature.signature} from level {level.level}: {count} of {level.candidate.measured} requests there"


def could_have_missed(
    levels: Sequence[LevelVerdict], overall: Rate, pooled: Comparison | None, confidence: float
) -> tuple[str, ...]:
    """What a clean run still does not exclude."""
    lines = []
    if overall.upper is not None:
        lines.append(
            f"Corruption in fewer than {percent(overall.upper)} of answers over all levels "
            f"({overall.count} of {overall.trials} seen, {percent(confidence)} one-sided Clopper-Pearson)."
        )
    for level in levels:
        rate = level.candidate.corrupt
        if rate.upper is not None:
            lines.append(f"Level {level.level}: fewer than {percent(rate.upper)} ({rate.count} of {rate.trials}).")
    slow = [
        f"×{comparison.upper:.2f} at level {level.level}"
        for level in levels
        for comparison in level.comparisons
        if comparison.metric == "tpot"
        and comparison.upper is not None
        and comparison.verdict is not ComparisonVerdict.WORSE
    ]
    if pooled is not None and pooled.upper is not None and pooled.verdict is not ComparisonVerdict.WORSE:
        slow.append(f"×{pooled.upper:.2f} over all levels above 1 together")
    if slow:
        lines.append(f"A TPOT slow-down of up to {', '.join(slow)}.")
    lines += [
        f"Level {level.level}: clients saw TPOT ×{plain:.2f}, by larger decode batches; that is shown, not gated."
        for level in levels
        for comparison in level.comparisons
        if comparison.at_equal_batch
        and (plain := _plain_ratio(comparison)) is not None
        and comparison.limit is not None
        and plain > comparison.limit
        and comparison.verdict is not ComparisonVerdict.WORSE
    ]
    if lines:
        lines.append(
            "Failures come in bursts (one bad step hits a whole batch), so rare ones need more runs, not more users."
        )
    return tuple(lines)


def _plain_ratio(comparison: Comparison) -> float | None:
    """Ratio of the medians as the clients saw them."""
    if not comparison.candidate_median_seconds or not comparison.baseline_median_seconds:
        return None
    return comparison.candidate_median_seconds / comparison.baseline_median_seconds


def _at(check: Check) -> str:
    return "" if check.level is None else f"level {check.level}: "
