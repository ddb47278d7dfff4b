"""Whether a level proves anything: the client kept up, enough was scored, and requests really ran together."""

from __future__ import annotations

from collections.abc import Mapping

from pdwatch.correctness import Outcome
from pdwatch.gate.policy import GatePolicy
from pdwatch.gate.verdict import ArmSummary, Check, Result

# of the scored answers, how many may have missed the reference before the level proves nothing.
UNASKED_SHARE = 0.05


def client_checks(level: int, client: Mapping[int, tuple[str, ...]]) -> list[Check]:
    """Whether the load generator kept up at a level; nothing when it has not told."""
    reasons = client.get(level)
    if reasons is None:
        return []
    text = f"the client was the limit: {'; '.join(reasons)}" if reasons else "the client kept up"
    return [Check(name="client", level=level, result=_valid(not reasons), text=text)]


def validity_checks(level: int, candidate: ArmSummary, policy: GatePolicy, asks_about_all: bool) -> list[Check]:
    """Whether enough was scored, by the reference too, and at a batch that deserves the level's name."""
    needed = policy.validity.min_scored
    enough = candidate.scored >= needed
    text = f"{candidate.scored} answers scored" + ("" if enough else f", {needed} needed: lengthen load.window_seconds")
    checks = [Check(name="scored", level=level, result=_valid(enough), text=text)]
    unscored = candidate.outcomes.get(Outcome.UNSCORED.value, 0)
    if unscored:
        text = f"{unscored} answers could not be judged without the reference"
        checks.append(Check(name="unscored", level=level, result=Result.INCONCLUSIVE, text=text))
    wrong = candidate.outcomes.get(Outcome.MODEL_ERROR.value, 0)
    if candidate.scored:
        few = wrong / candidate.scored <= policy.validity.max_model_error_ratio
        text = f"{wrong} of {candidate.scored} answers are wrong in the reference as well"
        text += "" if few else ": are these the right weights and template?"
        checks.append(Check(name="model errors", level=level, result=_valid(few), text=text))
    if asks_about_all and candidate.unasked > UNASKED_SHARE * candidate.scored:
        text = f"{candidate.unasked} of {candidate.scored} answers were not held against the reference"
        checks.append(Check(name="reference", level=level, result=Result.INCONCLUSIVE, text=text))
    if level > 1:
        batch, needed = candidate.running_batch or 0, policy.validity.min_running_batch
        reached = batch >= needed
        text = f"decode batch reached {batch}" + ("" if reached else f", {needed} needed: the users never overlapped")
        checks.append(Check(name="running batch", level=level, result=_valid(reached), text=text))
    return checks


def _valid(condition: bool) -> Result:
    return Result.PASS if condition else Result.INCONCLUSIVE
