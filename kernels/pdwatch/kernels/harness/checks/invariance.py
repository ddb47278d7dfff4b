"""A row's result depends on the row alone, and is the same every time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from pdwatch.kernels.harness.checks.base import Check, DoesNotApply, Subject, nothing
from pdwatch.kernels.harness.kernel import KernelUnderTest, Outputs, Promise, rows_of, take_rows

REPEATS = 100
# rows that are run alone; the first and last always are
_ALONE = 4
_CROWDS = (14, 40, 80, 160, 300)


def batch_invariance(subject: Subject) -> None:
    """Bit for bit: a row alone, in other company, at another position, twice in a batch."""
    cases = [case for case in subject.cases() if rows_of(subject.kernel, case.inputs) > 1]
    if not cases:
        raise DoesNotApply("no case has two rows")
    for number, case in enumerate(cases):
        rows = rows_of(subject.kernel, case.inputs)
        whole = subject.run(case.inputs)
        crowds = _CROWDS if subject.device.type == "cuda" else ()
        for words, chosen in _companies(rows, subject.generator(number), crowds):
            outputs = subject.run(take_rows(subject.kernel, case.inputs, chosen))
            expected = {name: tensor[chosen] for name, tensor in whole.items()}
            subject.require_same(f"case `{case.name}`, {words}", outputs, expected, case.inputs, chosen)


def _companies(rows: int, generator: torch.Generator, crowds: Sequence[int]) -> Iterator[tuple[str, list[int]]]:
    shuffled = torch.randperm(rows, generator=generator).tolist()
    for row in sorted({0, rows - 1, *shuffled[:_ALONE]}):
        yield f"row {row} alone", [row]
    yield "rows in another order", shuffled
    yield "rows reversed", list(range(rows - 1, -1, -1))
    yield "half of the rows", shuffled[: (rows + 1) // 2]
    yield "every row five times", [row for _ in range(5) for row in shuffled]
    for crowd in crowds:
        # on each side of where a launcher may change its schedule to fill the device
        yield f"in a batch of {crowd}", [shuffled[place % rows] for place in range(crowd)]


def layout_invariance(subject: Subject) -> None:
    """Bit for bit: pages elsewhere in the pool, another page stride, a wider table, a larger maximum."""
    variants = subject.kernel.variants
    assert variants is not None
    for number, case in enumerate(subject.cases()):
        outputs = subject.run(case.inputs)
        for words, inputs in variants(case, subject.generator(number)):
            subject.require_same(
                f"case `{case.name}`, {words}", _cut(subject.run(inputs), outputs), outputs, case.inputs
            )


def _cut(outputs: Outputs, like: Outputs) -> Outputs:
    """Results narrowed to the shape they have elsewhere: a larger maximum only adds undefined elements."""
    return {
        name: tensor[tuple(slice(length) for length in like[name].shape)] if name in like else tensor
        for name, tensor in outputs.items()
    }


def determinism(subject: Subject) -> None:
    """The same bits in a hundred runs, with other memory traffic in between."""
    cases = subject.cases()
    most_rows = max(cases, key=lambda case: rows_of(subject.kernel, case.inputs))
    for case in (cases[0], most_rows) if most_rows is not cases[0] else (most_rows,):
        given = subject.buffers(case.inputs)
        first = subject.run(case.inputs, given)
        for repeat in range(1, REPEATS):
            if subject.device.type == "cuda" and repeat % 10 == 0:
                # evicts the inputs from the L2 cache
                torch.empty(1 << 28, dtype=torch.uint8, device=subject.device).zero_()
            outputs = subject.run(case.inputs, given)
            subject.require_same(f"case `{case.name}`, run {repeat + 1}", outputs, first, case.inputs)


def _invariant(kernel: KernelUnderTest) -> str | None:
    if not kernel.promises_to_be(Promise.BATCH_INVARIANT):
        return "the kernel does not promise batch invariance"
    return None if kernel.batched else "no input has a batch axis"


def _deterministic(kernel: KernelUnderTest) -> str | None:
    return None if kernel.promises_to_be(Promise.DETERMINISTIC) else "the kernel does not promise determinism"


def _movable(kernel: KernelUnderTest) -> str | None:
    if not kernel.promises_to_be(Promise.DETERMINISTIC):
        return "the kernel does not promise determinism"
    return None if kernel.variants is not None else "the kernel names no equivalent layouts"


CHECKS = (
    Check(
        "batch_invariance",
        "B9, B12, B15: splits, tiles or branches chosen by the batch, rows that reach into each other",
        batch_invariance,
        _invariant,
        nothing,
    ),
    Check(
        "layout_invariance",
        "B13, B14, B15, B17: results that follow page ids, page stride, table width or the maximum",
        layout_invariance,
        _movable,
        nothing,
    ),
    Check("determinism", "B5, B8: atomics, races, state from earlier runs", determinism, _deterministic, nothing),
)
