"""Side streams inside a kernel, and graphs that share a pool: needs a GPU."""

from __future__ import annotations

from pdwatch.kernels.harness.checks.base import Check, CheckFailed, Subject, cuda
from pdwatch.kernels.harness.hazards import Defined, delay_fuzz, keep_alive, shared_pool, unordered_accesses
from pdwatch.kernels.harness.kernel import Buffers, Inputs, KernelUnderTest, Outputs, Promise
from pdwatch.kernels.harness.recording import Work


def stream_order(subject: Subject) -> None:
    """No two accesses to the same addresses on different streams are unordered."""
    for words, work, _ in _works(subject):
        if races := unordered_accesses(work):
            raise CheckFailed(f"case `{words}`: {races[0]} ({len(races)} races)")


def stream_delay(subject: Subject) -> None:
    for words, work, defined in _works(subject):
        if problem := delay_fuzz(work, defined):
            raise CheckFailed(f"case `{words}`, {problem}")


def stream_keep_alive(subject: Subject) -> None:
    for words, work, defined in _works(subject):
        if problem := keep_alive(work, defined):
            raise CheckFailed(f"case `{words}`: results change once transients are freed, {problem}")


def pool_sharing(subject: Subject) -> None:
    """Results survive the replay of another graph of the same pool."""
    cases = subject.cases()[:2]
    if len(cases) == 2:
        given = [subject.buffers(case.inputs) for case in cases]
        works = [_work(subject, case.inputs, own) for case, own in zip(cases, given, strict=True)]
        masks = [subject.defined(case.inputs) for case in cases]
        if problem := shared_pool(works[0], works[1], (masks[0], masks[1])):
            raise CheckFailed(f"cases `{cases[0].name}` and `{cases[1].name}`: {problem}")


def _works(subject: Subject) -> list[tuple[str, Work, Defined]]:
    # the kernel allocates its transients itself here: those are what a side stream can lose
    return [
        (case.name, _work(subject, case.inputs, None), subject.defined(case.inputs)) for case in subject.cases()[:2]
    ]


def _work(subject: Subject, inputs: Inputs, buffers: Buffers | None) -> Work:
    run = subject.kernel.run

    def work() -> Outputs:
        return run(inputs, buffers)

    return work


def _exact(kernel: KernelUnderTest) -> str | None:
    for promise in (Promise.CAPTURABLE, Promise.DETERMINISTIC):
        if not kernel.promises_to_be(promise):
            return f"the kernel does not promise to be {promise.value}"
    return None


CHECKS = (
    Check(
        "stream_order", "B1 to B4: H1, H2: memory reused while another stream reads it", stream_order, _exact, cuda, 2
    ),
    Check("stream_delay", "B1 to B4, B6: late joins, missing waits", stream_delay, _exact, cuda, 2),
    Check("stream_keep_alive", "B1 to B4: transients freed too early", stream_keep_alive, _exact, cuda, 2),
    Check("pool_sharing", "B6: H3: results overwritten by a graph of the same pool", pool_sharing, _exact, cuda, 2),
)
