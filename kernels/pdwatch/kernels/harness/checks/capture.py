"""A kernel inside a captured graph: the same results, whatever the lengths at capture were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from pdwatch.kernels.harness.checks.base import Check, CheckFailed, Subject, recorder
from pdwatch.kernels.harness.kernel import Buffers, Case, KernelUnderTest, Outputs, Promise
from pdwatch.kernels.harness.memory import NAN_BYTE, PLAIN_BYTE, clones, fill_bytes, guard_inputs
from pdwatch.kernels.harness.recording import (
    Graph,
    Recording,
    load,
    no_synchronisation,
    record,
    replay_together,
)
from pdwatch.kernels.harness.tape import Tape


def capture(subject: Subject) -> None:
    """Replays of a graph captured with a case's own values equal its eager run, twice."""
    for case in subject.cases():
        eager = subject.run(case.inputs)
        bucket = Bucket.record(subject, case)
        for _ in range(2):
            outputs = bucket.replay(subject, case)
            _agree(subject, f"case `{case.name}` replayed", outputs, eager, case)


def replay(subject: Subject) -> None:
    """Captured with dummy lengths, replayed with every length of the edge list, up and down, buckets in turn."""
    replays = subject.kernel.replays
    assert replays is not None
    groups = replays(subject.seed, subject.device)
    pool = torch.cuda.graph_pool_handle() if subject.device.type == "cuda" else None
    # the largest first, as engines capture them
    buckets = [Bucket.record(subject, group[0], pool) for group in groups]
    for turn in range(max(len(group) for group in groups)):
        for bucket, group in zip(buckets, groups, strict=True):
            case = group[turn % len(group)]
            outputs = bucket.replay(subject, case)
            _agree(subject, f"replay {turn + 1}, `{case.name}`", outputs, subject.run(case.inputs), case)
            subject.require_right(f"replay {turn + 1}, `{case.name}`", case.inputs, outputs)


def capture_lint(subject: Subject) -> None:
    """No host waits for the device, no constant comes from the host, nothing is allocated beside the buffers."""
    for case in subject.cases():
        given = subject.buffers(case.inputs)
        work = partial(subject.kernel.run, case.inputs, given)
        if subject.device.type != "cuda":
            if found := Tape(work).synchronising:
                raise CheckFailed(f"case `{case.name}`: {found[0]}")
            continue
        subject.run(case.inputs, given)
        try:
            with no_synchronisation():
                work()
        except RuntimeError as error:
            raise CheckFailed(f"case `{case.name}`: {error}") from error
        finally:
            subject.synchronize()
        graph = Graph(work)
        if given is not None and subject.kernel.promises_to_be(Promise.ALLOCATES_NOTHING) and graph.allocations:
            raise CheckFailed(f"case `{case.name}`: {graph.allocations} allocations although buffers were given")


def concurrent(subject: Subject) -> None:
    """Two recordings with buffers of their own, replayed at the same time, do not disturb each other."""
    cases = subject.cases()
    for first, second in zip(cases, [*cases[1:], cases[0]], strict=True):
        alone = [subject.run(case.inputs) for case in (first, second)]
        buckets = [Bucket.record(subject, case) for case in (first, second)]
        for _ in range(5):
            for bucket, case in zip(buckets, (first, second), strict=True):
                bucket.prepare(case)
            subject.synchronize()
            replay_together([bucket.recording for bucket in buckets], subject.device)
            subject.synchronize()
            for bucket, case, expected in zip(buckets, (first, second), alone, strict=True):
                where = f"cases `{first.name}` and `{second.name}` on two streams"
                _agree(subject, where, clones(bucket.recording.outputs), expected, case)


@dataclass(frozen=True, slots=True)
class Bucket:
    """A recording, the tensors it reads, and the buffers it writes."""

    static: Mapping[str, Any]
    buffers: Buffers | None
    recording: Recording

    @classmethod
    def record(cls, subject: Subject, dummy: Case, pool: Any = None) -> Bucket:
        static = guard_inputs(dummy.inputs, PLAIN_BYTE)
        given = subject.buffers(static)
        recording = record(lambda: subject.kernel.run(static, given), subject.device, pool)
        return cls(static, given, recording)

    def prepare(self, case: Case) -> None:
        load(self.static, case.inputs)
        for tensor in self.recording.outputs.values():
            fill_bytes(tensor, NAN_BYTE)

    def replay(self, subject: Subject, case: Case) -> Outputs:
        """The results of `case`, copied out before the next replay."""
        self.prepare(case)
        self.recording.replay()
        subject.synchronize()
        return clones(self.recording.outputs)


def _agree(subject: Subject, where: str, outputs: Outputs, eager: Outputs, case: Case) -> None:
    if subject.kernel.promises_to_be(Promise.DETERMINISTIC):
        subject.require_same(where, outputs, eager, case.inputs)
    else:
        subject.require_right(where, case.inputs, outputs)


def _capturable(kernel: KernelUnderTest) -> str | None:
    return None if kernel.promises_to_be(Promise.CAPTURABLE) else "the kernel does not promise to be capturable"


def _replayable(kernel: KernelUnderTest) -> str | None:
    if kernel.replays is None:
        return "the kernel names no cases of equal shapes"
    return _capturable(kernel)


CHECKS: Sequence[Check] = (
    Check("capture", "B7, B8, B9: a replay that differs from the eager run", capture, _capturable, recorder),
    Check(
        "replay",
        "B8, B9, B10, B11, B12: lengths, branches, schedules or widths frozen at capture; stale scratch",
        replay,
        _replayable,
        recorder,
    ),
    Check(
        "capture_lint",
        "B7, B8: synchronisation, constants from the host, allocation although buffers were given",
        capture_lint,
        _capturable,
        recorder,
    ),
    Check("concurrent", "B5: scratch shared by two streams", concurrent, _capturable, recorder),
)
