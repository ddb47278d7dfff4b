"""Choice of the best positions: inputs, reference, and a judge that knows ties.

Inputs by name: `logits` fp32 [rows, width] (whatever stands at or past a row's length is never looked at), `lengths`
int32 [rows], `count` (constant). Result: `positions` int32 [rows, count], ascending, then -1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pdwatch.kernels.harness.compare import disagreement
from pdwatch.kernels.harness.kernel import (
    ALL_PROMISES,
    Buffers,
    Case,
    Expected,
    Family,
    Inputs,
    KernelUnderTest,
    Kind,
    Outputs,
    Promise,
    Run,
    Tolerance,
)

EXACT = Tolerance("positions are exact")


def topk_kernel(
    name: str,
    run: Run,
    *,
    count: int = 32,
    lower_position_wins: bool = True,
    nan_last: bool = True,
    buffers: Callable[[Inputs], Buffers] | None = None,
    second_reference: Callable[[Inputs], Outputs] | None = None,
    invalid: Callable[[Inputs], Iterable[tuple[str, Inputs]]] | None = None,
    promises: frozenset[Promise] = ALL_PROMISES,
    devices: tuple[str, ...] = ("cpu", "cuda"),
    operators_only: bool = False,
) -> KernelUnderTest:
    """A kernel that chooses `count` positions.

    lower_position_wins  of equal logits the lower position is chosen and positions ascend: results are compared
                         exactly. Otherwise any choice among ties, in any order, is right
    nan_last             NaN is allowed in logits and comes after every number
    """
    return KernelUnderTest(
        name=name,
        family=Family.TOPK,
        run=run,
        reference=topk_reference,
        cases=lambda seed, device: topk_cases(count, nan_last, seed, device),
        tolerances={"positions": EXACT},
        batched={"logits": 0, "lengths": 0},
        buffers=buffers,
        second_reference=second_reference,
        variants=_variants,
        replays=lambda seed, device: topk_replays(count, seed, device),
        timing=topk_timing,
        judge=judge_by_rule if lower_position_wins else judge_any_ties,
        invalid=invalid,
        promises=promises,
        devices=devices,
        operators_only=operators_only,
    )


def topk_reference(inputs: Inputs) -> dict[str, Expected]:
    """Higher logit first, of equal logits the lower position, NaN last; by sorting tuples in Python."""
    count = inputs["count"]
    rows = []
    for logits, length in zip(inputs["logits"].tolist(), inputs["lengths"].tolist(), strict=True):
        ranked = sorted(range(length), key=lambda place: _rank(logits[place], place))
        chosen = sorted(ranked[:count])
        rows.append(chosen + [-1] * (count - len(chosen)))
    value = torch.tensor(rows, dtype=torch.int64, device=inputs["logits"].device).view(len(rows), count)
    return {"positions": Expected(value)}


def judge_by_rule(inputs: Inputs, outputs: Outputs, expected: Mapping[str, Expected]) -> str | None:
    """The chosen positions are exactly the reference's."""
    problem = disagreement(outputs["positions"], expected["positions"], EXACT)
    # the tie-aware words say more, when it is more than the tie rule that is broken
    return (judge_any_ties(inputs, outputs, expected) or problem) if problem else None


def judge_any_ties(inputs: Inputs, outputs: Outputs, expected: Mapping[str, Expected]) -> str | None:
    """No position twice, none outside the row, as many as there must be, and none better left out."""
    positions = outputs["positions"]
    if positions.shape != expected["positions"].value.shape:
        return f"`positions`: shape {list(positions.shape)}"
    for row, (chosen, right) in enumerate(zip(positions.tolist(), expected["positions"].value.tolist(), strict=True)):
        length = int(inputs["lengths"][row])
        found = [place for place in chosen if place != -1]
        wanted = [place for place in right if place != -1]
        if any(not 0 <= place < length for place in found):
            return f"`positions`: row {row} has {max(found)}, its length is {length}"
        if len(set(found)) != len(found):
            return f"`positions`: row {row} has a position twice"
        if len(found) != len(wanted):
            return f"`positions`: row {row} has {len(found)} positions, {len(wanted)} are right"
        scores = inputs["logits"][row].tolist()
        # equal as sorted lists of scores: which one of equal scores was taken does not matter
        taken, best = (sorted(_rank(scores[place], 0) for place in places) for places in (found, wanted))
        if taken != best:
            missed = next(index for index, pair in enumerate(zip(taken, best, strict=True)) if pair[0] != pair[1])
            return f"`positions`: row {row} lacks its {missed + 1}. best logit"
    return None


def topk_cases(count: int, nan_last: bool, seed: int, device: torch.device) -> Iterator[Case]:
    """Cases of one seed."""
    generator = torch.Generator().manual_seed(seed)

    def values(rows: int, width: int) -> Tensor:
        return torch.randn(rows, width, generator=generator)

    yield _case("random", Kind.RANDOM, values(4, 4 * count + 7), [4 * count, 3 * count, count + 1, 97], count, device)
    odd = int(torch.randint(1, 3 * count, (1,), generator=generator))
    edges = [count - 1, count, count + 1, odd, 0, 1]
    yield _case("around the count", Kind.ODD, values(6, 3 * count + 1), edges, count, device)
    coarse = (values(4, 4 * count) * 2).round().clamp(-1, 2)
    yield _case("few distinct logits", Kind.TIES, coarse, [4 * count, 4 * count - 3, 70, 5], count, device)
    yield _case("all equal", Kind.TIES, torch.ones(2, 3 * count), [3 * count, 2 * count + 1], count, device)
    dead = values(2, 4 * count).clamp(min=1.5) - 1.5
    dead[:, ::3] *= -1.0
    yield _case("mostly zero, of both signs", Kind.TIES, dead, [4 * count, 3 * count - 1], count, device)
    close = 1.0 + torch.randint(0, 3, (2, 4 * count), generator=generator) * 2.0**-23
    yield _case("an ulp apart", Kind.TIES, close, [4 * count, 3 * count], count, device)
    extreme = values(3, 3 * count) * 1e38
    extreme[0, ::2] = float("inf")
    extreme[1, ::2] = float("-inf")
    yield _case("infinities", Kind.ADVERSARIAL, extreme, [3 * count, 3 * count, 2 * count], count, device)
    yield _case("negative", Kind.ADVERSARIAL, -values(2, 3 * count).abs() - 1, [3 * count] * 2, count, device)
    yield _case("empty rows", Kind.ADVERSARIAL, values(3, 2 * count), [0, 2 * count, 0], count, device)
    ramp = torch.arange(4 * count, dtype=torch.float32)
    both_ways = torch.stack([ramp, ramp.flip(0)])
    yield _case("sorted", Kind.ADVERSARIAL, both_ways, [4 * count, 4 * count], count, device)
    if nan_last:
        broken = values(2, 3 * count)
        broken[0, ::4], broken[1] = float("nan"), float("nan")
        yield _case("NaN", Kind.ADVERSARIAL, broken, [3 * count, 2 * count], count, device)


def topk_replays(count: int, seed: int, device: torch.device) -> list[list[Case]]:
    """Two buckets of different numbers of rows; the dummy of each has length 1."""
    generator = torch.Generator().manual_seed(seed + 77)
    groups = []
    edges = (1, 0, 1, 3, count - 1, count, count + 1, 2 * count, 4 * count - 1, 4 * count, count, 5, 0)
    for rows in (4, 2):
        group = []
        for step, edge in enumerate(edges):
            lengths = [min(max(edge - row if step % 2 else edge + row, 0), 4 * count) for row in range(rows)]
            logits = torch.randn(rows, 4 * count, generator=generator)
            group.append(_case(f"length {edge}, {rows} rows", Kind.RANDOM, logits, lengths, count, device))
        groups.append(group)
    return groups


def topk_timing(length: int, maximum: int, device: torch.device) -> dict[str, Any]:
    generator = torch.Generator(device).manual_seed(0)
    logits = torch.randn(4, maximum, generator=generator, device=device)
    lengths = torch.full((4,), length, dtype=torch.int32, device=device)
    return {"logits": logits, "lengths": lengths, "count": 512}


def _variants(case: Case, generator: torch.Generator) -> Iterator[tuple[str, dict[str, Any]]]:
    """The same rows with a larger maximum, and in a row stride of their own."""
    logits = case.inputs["logits"]
    rows, width = logits.shape
    # what was past the lengths stays there; what is new is better than anything that counts
    wider = torch.full((rows, width + 300), 1e30, device=logits.device)
    wider[:, :width] = logits
    yield "a larger maximum", {**case.inputs, "logits": wider}
    yield "rows further apart", {**case.inputs, "logits": wider[:, :width]}


def _case(name: str, kind: Kind, logits: Tensor, lengths: Sequence[int], count: int, device: torch.device) -> Case:
    bounds = torch.tensor([min(length, logits.shape[1]) for length in lengths], dtype=torch.int32)
    inputs = {"logits": logits.to(device), "lengths": bounds.to(device), "count": count}
    unread = torch.arange(logits.shape[1]) >= bounds[:, None]
    return Case(name, kind, inputs, {"logits": unread.to(device)}, {"lengths": logits.shape[1]})


def _rank(logit: float, place: int) -> tuple[bool, float, int]:
    """Sorts the best first."""
    unordered = logit != logit
    return unordered, 0.0 if unordered else -logit, place
