"""Whether a level measured the server, or the client that loaded it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0)]
Number = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ProcessUse(_Frozen):
    """CPU (user and system) that one process of the client used while `elapsed_seconds` passed."""

    cpu_seconds: Number
    elapsed_seconds: Number

    @property
    def share(self) -> float | None:
        """Share of one core; None when no time passed."""
        return self.cpu_seconds / self.elapsed_seconds if self.elapsed_seconds else None


class ClientFacts(_Frozen):
    """What the client did in the measured part of a phase; None where there is no such thing.

    `loop_lag_*` is how late the loop that sends came round; `in_flight` is the mean over time;
    `processes` are the client's own, the one that sends under the name `driver`. The recorder's backlog is
    what had ended and was not in the journal yet, the send backlog what the kernel had not taken at once.
    `bound_in_flight` is how many requests a schedule may have in flight, `most_in_flight` how many there were at most.
    `client_refusals` counts requests that could not be sent for want of this host's descriptors or ports;
    `back_off_seconds` is how long users rested after failures, over all of them: they are not intended to be in flight.
    """

    loop_lag_p50_seconds: Number | None = None
    loop_lag_p99_seconds: Number | None = None
    loop_lag_most_seconds: Number | None = None
    processes: Mapping[str, ProcessUse] = {}
    intended_in_flight: Number | None = None
    achieved_in_flight: Number | None = None
    intended_rate_per_second: Number | None = None
    achieved_rate_per_second: Number | None = None
    schedule_lag_p99_seconds: Number | None = None
    recorder_backlog_most_requests: Count | None = None
    recorder_backlog_most_bytes: Count | None = None
    send_backlog_most_bytes: Count | None = None
    send_backlog_most_seconds: Number | None = None
    requests_made_late: Count | None = None
    most_in_flight: Count | None = None
    bound_in_flight: Count | None = None
    client_refusals: Count | None = None
    back_off_seconds: Number | None = None

    @property
    def is_bound_reached(self) -> bool:
        """Whether every request that may be in flight once was."""
        bound, most = self.bound_in_flight, self.most_in_flight
        return bound is not None and most is not None and most >= bound


class ValidityLimits(_Frozen):
    """Beyond these the client was the limit, and what was measured is not the server's doing.

    A lag of the loop goes into every sending; arrivals are stamped by the kernel. `least_in_flight_share` and
    `least_rate_share` are shares of what was intended; `most_cpu_share` is of one core and for one process.
    """

    most_loop_lag_p99_seconds: Number = 0.1
    most_loop_lag_seconds: Number = 1.0
    most_cpu_share: Number = 0.95
    least_in_flight_share: Share = 0.9
    least_rate_share: Share = 0.95
    most_schedule_lag_p99_seconds: Number = 0.1
    most_recorder_backlog_bytes: Count = 256 * 2**20
    most_send_backlog_seconds: Number = 1.0


class Validity(_Frozen):
    """`reasons` say what was beyond its limit, one line each; none when the level is valid.

    `is_bound_reached`: the only reason is that requests waited because as many were in flight as may be. The target was
    too slow for the rate then; the client was not the limit.
    """

    is_valid: bool
    reasons: tuple[str, ...] = ()
    is_bound_reached: bool = False


def judge_validity(facts: ClientFacts, limits: ValidityLimits) -> Validity:
    """Hold the client's facts against the limits; a fact that is None is not held against any."""
    clients, schedule = list(_clients(facts, limits)), list(_schedule(facts, limits))
    is_bound_reached = bool(schedule) and facts.is_bound_reached
    if is_bound_reached:
        schedule = [
            f"the bound of {facts.bound_in_flight} in flight was reached, and requests waited for it: "
            "the target is too slow for the rate; lower the rate, or raise the bound"
        ]
    reasons = (*clients, *schedule)
    return Validity(is_valid=not reasons, reasons=reasons, is_bound_reached=is_bound_reached and not clients)


def _clients(facts: ClientFacts, limits: ValidityLimits) -> Iterator[str]:
    lag, longest = facts.loop_lag_p99_seconds, facts.loop_lag_most_seconds
    if lag is not None and lag > limits.most_loop_lag_p99_seconds:
        yield (
            f"loop lag p99 {_ms(lag)} is over {_ms(limits.most_loop_lag_p99_seconds)}: "
            "requests are sent that much late; give the client a core of its own, or more processes"
        )
    if longest is not None and longest > limits.most_loop_lag_seconds:
        yield f"the loop stood still for {_ms(longest)}, over {_ms(limits.most_loop_lag_seconds)}"
    for name, use in facts.processes.items():
        if use.share is not None and use.share > limits.most_cpu_share:
            yield (
                f"process {name} used {100 * use.share:.0f} % of a core, over {100 * limits.most_cpu_share:.0f} %: "
                "use more processes or fewer users"
            )
    intended, achieved = facts.intended_in_flight, facts.achieved_in_flight
    if intended and achieved is not None and achieved < limits.least_in_flight_share * intended:
        yield (
            f"{achieved:.1f} requests were in flight on average, {intended:g} intended "
            f"(at least {100 * limits.least_in_flight_share:.0f} %)"
        )
    backlog = facts.recorder_backlog_most_bytes
    if backlog is not None and backlog > limits.most_recorder_backlog_bytes:
        yield f"{backlog / 2**20:.0f} MiB waited to be recorded, over {limits.most_recorder_backlog_bytes / 2**20:.0f}"
    sending = facts.send_backlog_most_seconds
    if sending is not None and sending > limits.most_send_backlog_seconds:
        yield f"a request took {_ms(sending)} to be sent, over {_ms(limits.most_send_backlog_seconds)}"
    if facts.client_refusals:
        yield (
            f"{facts.client_refusals} requests could not be sent for want of this host's descriptors or ports: "
            "raise `ulimit -n`, or use fewer users"
        )


def _schedule(facts: ClientFacts, limits: ValidityLimits) -> Iterator[str]:
    wanted, rate = facts.intended_rate_per_second, facts.achieved_rate_per_second
    if wanted and rate is not None and rate < limits.least_rate_share * wanted:
        yield f"{rate:.2f} requests/s were sent, {wanted:g} intended (at least {100 * limits.least_rate_share:.0f} %)"
    late = facts.schedule_lag_p99_seconds
    if late is not None and late > limits.most_schedule_lag_p99_seconds:
        yield f"requests were sent {_ms(late)} (p99) after their time, over {_ms(limits.most_schedule_lag_p99_seconds)}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"
