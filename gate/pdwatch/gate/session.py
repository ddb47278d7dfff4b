"""A gate run from the first process to the last byte of the report.

1. The folder and its `run.json` exist before anything is started.
2. up: the embedded deployments start (candidate with the reference, baseline), or an existing one is taken.
3. preflight: every server is asked who it is.
4. drive: the load generator runs the plan as a process of its own while all /metrics are sampled.
5. judge: the transcripts are judged against the reference, which stays up for that.
6. report: tables, verdict, JUnit and report are derived; then everything is stopped.

Whatever ends a run early is written to `run.json`, what was recorded is judged without the reference, and the
error goes on to the caller.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pdwatch.correctness import Reference, ReferenceUnavailable, ScoreJournal
from pdwatch.gate.console import Talk
from pdwatch.gate.derive import derive, stored_reference, tokenizer_for
from pdwatch.gate.driver import Event, drive
from pdwatch.gate.embedded import embedded_specs, start_embedded
from pdwatch.gate.errors import PolicyError
from pdwatch.gate.host import host_facts, software_versions
from pdwatch.gate.planning import make_plan, planned_seconds, save_plan, workload
from pdwatch.gate.policy import GatePolicy
from pdwatch.gate.preflight import preflight
from pdwatch.gate.redact import redact_command
from pdwatch.gate.run_folder import ClientRecord, PhaseRecord, RunFolder, State
from pdwatch.gate.sampler import Sampler
from pdwatch.gate.signals import raise_on_signals
from pdwatch.gate.targets import Targets, existing_targets
from pdwatch.gate.verdict import Verdict
from pdwatch.loadgen import Plan


@dataclass(frozen=True, slots=True)
class GateRequest:
    """What the command line asks for, besides the policy."""

    policy: GatePolicy
    out: Path | None = None
    fault: str | None = None
    fault_seed: int = 0
    weights: Path | None = None
    with_baseline: bool = True
    ports: dict[str, int] | None = None
    engine: Mapping[str, Any] = field(default_factory=dict)
    command: Sequence[str] = ()


def run_gate(request: GateRequest, talk: Talk) -> tuple[RunFolder, Verdict]:
    """Run the gate. Raises errors of this and the other portions for what could not be run."""
    policy = request.policy
    embedded = policy.targets.router is None
    workload(policy.load)
    specs = embedded_specs(request) if embedded else ()
    if not embedded:
        _refuse_embedded_options(request)
    folder = RunFolder.create(
        request.out,
        policy,
        redact_command(request.command),
        versions=software_versions(),
        host=host_facts(),
        embedded=embedded,
        fault=request.fault,
        fault_seed=None if request.fault is None else request.fault_seed,
        deployments=tuple(spec.model_dump(mode="json") for spec in specs),
    )
    talk.say(f"run folder {folder.path}")
    with raise_on_signals():
        try:
            with ExitStack() as stack:
                if embedded:
                    folder.update(stage="up")
                    targets, check = stack.enter_context(start_embedded(specs, folder.path, talk))
                else:
                    targets, check = existing_targets(policy.targets), _nothing_to_check
                verdict = _run(folder, targets, check, talk)
        except BaseException as error:
            _keep_what_there_is(folder, error, talk)
            raise
    return folder, verdict


def _run(folder: RunFolder, targets: Targets, check: Callable[[], None], talk: Talk) -> Verdict:
    policy = folder.record.policy
    folder.update(stage="preflight")
    found = preflight(targets, policy.targets.model, policy.targets.bearer_token_environment)
    plan = make_plan(policy, targets.urls, found.model)
    save_plan(folder.plan, plan)
    folder.update(
        stage="drive",
        model=found.model,
        workers=found.workers,
        reference_available=found.reference_available,
        phases=tuple(PhaseRecord.model_validate(phase.model_dump()) for phase in plan.phases),
        not_checked=tuple(_not_checked(targets, found.model)),
    )
    if targets.reference is not None and not found.reference_available:
        talk.say("warning: the reference does not answer; the verdict will be INCONCLUSIVE")
    with Sampler(folder.server_samples, targets.sampled()):
        relay = _Relay(talk, plan, lambda record: folder.update(client=(*folder.record.client, record)))
        drive(folder.plan, folder.path, folder.logs / "loadgen.log", relay, check)
        relay.close()
    folder.update(stage="judge")
    verdict = _judge(folder, targets, plan, talk)
    folder.update(stage="done", state=State.COMPLETE, ended_unix_seconds=time.time())
    return verdict


def _judge(folder: RunFolder, targets: Targets, plan: Plan, talk: Talk) -> Verdict:
    talk.begin("judging the answers")

    def progress(done: int) -> None:
        talk.advance(done, f"{done} requests")

    if targets.reference is None or not folder.record.reference_available:
        verdict = derive(folder, None, finished=True, progress=progress)
    else:
        token = plan.bearer_token()
        try:
            with (
                ScoreJournal(folder.reference_scores) as journal,
                Reference(targets.reference, journal, bearer_token=token) as reference,
            ):
                verdict = derive(folder, reference, finished=True, connections=reference.connections, progress=progress)
        except ReferenceUnavailable as error:
            # the load is worth keeping: without its reference the run is INCONCLUSIVE, and says so.
            talk.say(f"warning: {error}; judging without it")
            folder.update(reference_available=False)
            verdict = derive(folder, None, finished=True, progress=progress)
    talk.end()
    return verdict


def _keep_what_there_is(folder: RunFolder, error: BaseException, talk: Talk) -> None:
    """Record why the run ended and derive what can be derived; never hides `error`."""
    failure = " ".join(str(error).split()) or type(error).__name__
    try:
        folder.update(state=State.FAILED, failure=failure, ended_unix_seconds=time.time())
        if folder.transcripts.exists():
            with stored_reference(folder.reference_scores) as reference:
                derive(folder, reference, finished=False)
            talk.say(f"what was recorded until then: {folder.report}")
    except Exception as later:
        error.add_note(f"and the run folder could not be finished: {later}")


def _not_checked(targets: Targets, model: str) -> Iterator[str]:
    if not targets.has_baseline:
        yield "slow-down, since no baseline was driven"
    if targets.reference is None:
        yield "agreement with an eager reference, since none was named (--reference)"
    elif tokenizer_for(model) is None:
        yield (
            f"agreement with the reference token by token, since the template of `{model}` is not known here: "
            "wrong answers are compared with the reference's own"
        )
    if not targets.sampled():
        yield "the decode batch as the servers see it, since no worker was named (--decode-url)"


def _refuse_embedded_options(request: GateRequest) -> None:
    options = {
        "--fault": request.fault,
        "--weights": request.weights,
        "--port": request.ports,
        "--engine (and --device, --kernels, --capture, --overlap)": request.engine,
    }
    for option, given in options.items():
        if given:
            raise PolicyError(f"`{option}` acts on the embedded deployment only: leave it out, or leave out --target")


def _nothing_to_check() -> None:
    """An existing deployment has no processes of ours to watch."""


class _Relay:
    """Turns the load generator's events into talk."""

    def __init__(self, talk: Talk, plan: Plan, keep: Callable[[ClientRecord], None]) -> None:
        self._talk = talk
        self._plan = plan
        self._keep = keep
        self._level: int | None = None
        self._counts: dict[str, int] = {}
        self._passed_seconds = 0.0
        talk.say(f"{len(plan.phases)} phases, {planned_seconds(plan):.0f} s of load and what ends after it")

    def __call__(self, event: Event) -> None:
        name = event.get("event")
        if name == "phase_start":
            self._start(event)
        elif name == "progress":
            elapsed = float(event.get("elapsed_seconds", 0.0))
            note = f"{event.get('ended', 0)} ended, {event.get('in_flight', 0)} in flight"
            self._talk.advance(self._passed_seconds + elapsed, f"{event.get('arm')}: {note}")
        elif name == "phase_end":
            arm = str(event.get("arm"))
            self._counts[arm] = self._counts.get(arm, 0) + int(event.get("measured", 0))
            self._passed_seconds += self._planned_seconds(int(event.get("phase", -1)))
            self._judge_client(event)

    def close(self) -> None:
        """The last level is over."""
        if self._level is not None:
            counts = ", ".join(f"{count} {arm}" for arm, count in sorted(self._counts.items(), reverse=True))
            self._talk.end(f"{counts} requests measured")
        self._level = None

    def _judge_client(self, event: Event) -> None:
        """Keep what the load generator says of itself, and tell at once when it was the limit."""
        validity = event.get("validity")
        if validity is None:
            return
        record = ClientRecord(
            phase=event["phase"], arm=event["arm"], level=event["level"], **validity, facts=event.get("client") or {}
        )
        self._keep(record)
        for reason in record.reasons:
            self._talk.say(f"warning: level {record.level} of the {record.arm} is INVALID: {reason}")

    def _start(self, event: Event) -> None:
        level = int(event.get("level", 0))
        if level != self._level:
            self.close()
            self._level = level
            self._counts = {}
            self._passed_seconds = 0.0
            phases = [phase.index for phase in self._plan.phases if phase.level == level]
            self._talk.begin(f"level {level}", sum(map(self._planned_seconds, phases)))

    def _planned_seconds(self, index: int) -> float:
        """Warm-up and window of a phase; 0 for one that is not in the plan."""
        phases = (phase for phase in self._plan.phases if phase.index == index)
        return sum(phase.warmup_seconds + phase.window_seconds for phase in phases)
