"""What the client notices of itself while it drives load: whether it was the limit."""

from __future__ import annotations

import math
import time
from array import array
from typing import Final

from .alarm import Alarm
from .percentiles import percentile
from .poller import Poller
from .validity import ClientFacts, ProcessUse

LAG_SECONDS: Final = 0.02

# every process's clock has a number that follows from the process's own; see clock_getcpuclockid(3).
_CPU_CLOCK: Final = 2


class Meter:
    """Counts from `begin` to `facts`. Times are monotonic; what is counted in between costs next to nothing."""

    def __init__(self) -> None:
        self.unsent_bytes = 0
        self.in_flight = 0
        self.held_up = 0
        self._processes: dict[str, int] = {}
        self._lags: array[float] = array("d")
        self._due_seconds = 0.0
        self._sent = 0
        self._most_in_flight = 0
        self._alarm: Alarm | None = None
        self._most_unsent_bytes = 0
        self._most_sending_seconds = 0.0
        self._most_backlog_requests = 0
        self._most_backlog_bytes = 0
        self._reset(time.monotonic())

    def watch(self, poller: Poller, processes: dict[str, int]) -> None:
        """Keep how late the loop comes round, and the CPU time of these processes (name and id)."""
        self._processes = processes
        self._alarm = Alarm(poller, self._lag)
        self._due_seconds = time.monotonic() + LAG_SECONDS
        self._alarm.set(self._due_seconds)

    def begin(self) -> None:
        """Forget what was counted so far."""
        self._catch_up()
        self._reset(time.monotonic())

    def sent(self, scheduled_seconds: float | None, sent_seconds: float) -> None:
        """A request goes out; it is in flight until `ended`."""
        self._flow(sent_seconds)
        self.in_flight += 1
        self._most_in_flight = max(self._most_in_flight, self.in_flight)
        self._sent += self._is_flowing
        if scheduled_seconds is not None:
            self._schedule_lags.append(sent_seconds - scheduled_seconds)

    def ended(self, ended_seconds: float) -> None:
        """A request has ended."""
        self._flow(ended_seconds)
        self.in_flight -= 1

    def hold_up(self) -> None:
        """A user rests after a failure; it is held up until `let_go`."""
        self._flow(time.monotonic())
        self.held_up += 1

    def let_go(self) -> None:
        """A user is held up no more: its next request is about to be sent, or it has none."""
        self._flow(time.monotonic())
        self.held_up -= 1

    def held_up_mean(self) -> float:
        """Users held up, on average since `begin` up to `stop_flow`."""
        return self._held_up_seconds / self.flow_seconds if self.flow_seconds > 0 else 0.0

    def note_refusal(self) -> None:
        """This machine itself refused a connection, for want of descriptors, ports or memory."""
        self._refusals += 1

    def note_backlog(self) -> None:
        """A request has not gone out whole at once."""
        self._most_unsent_bytes = max(self._most_unsent_bytes, self.unsent_bytes)

    def note_sending(self, seconds: float) -> None:
        """It took so long until a request had gone out whole."""
        self._most_sending_seconds = max(self._most_sending_seconds, seconds)

    def note_made_late(self) -> None:
        """A user had to wait for its request to be made."""
        self._made_late += 1

    def note_recording(self, requests: int, size_bytes: int) -> None:
        """So much waits to be recorded."""
        self._most_backlog_requests = max(self._most_backlog_requests, requests)
        self._most_backlog_bytes = max(self._most_backlog_bytes, size_bytes)

    def longest_lag_seconds(self) -> float:
        """The latest that the loop came round."""
        return max(self._lags, default=0.0)

    def stop_flow(self) -> None:
        """What is sent from now on counts neither for the rate nor for the requests in flight."""
        now_seconds = time.monotonic()
        self._flow(now_seconds)
        self.flow_seconds = now_seconds - self._began_seconds
        self._is_flowing = False

    def facts(
        self,
        intended_in_flight: float | None,
        intended_rate_per_second: float | None,
        bound_in_flight: int | None = None,
    ) -> ClientFacts:
        """What was counted since `begin`; the flow ends with `stop_flow`."""
        self._catch_up()
        elapsed_seconds = time.monotonic() - self._began_seconds
        flow_seconds = self.flow_seconds
        used = {name: seconds - self._used.get(name, 0.0) for name, seconds in self._cpu_seconds().items()}
        return ClientFacts(
            loop_lag_p50_seconds=percentile(self._lags, 50),
            loop_lag_p99_seconds=percentile(self._lags, 99),
            loop_lag_most_seconds=max(self._lags, default=None),
            processes={
                name: ProcessUse(cpu_seconds=max(0.0, seconds), elapsed_seconds=elapsed_seconds)
                for name, seconds in used.items()
            },
            intended_in_flight=intended_in_flight,
            achieved_in_flight=self._in_flight_seconds / flow_seconds if flow_seconds > 0 else None,
            intended_rate_per_second=intended_rate_per_second,
            achieved_rate_per_second=self._sent / flow_seconds if flow_seconds > 0 else None,
            schedule_lag_p99_seconds=_not_negative(percentile(self._schedule_lags, 99)),
            recorder_backlog_most_requests=self._most_backlog_requests,
            recorder_backlog_most_bytes=self._most_backlog_bytes,
            send_backlog_most_bytes=self._most_unsent_bytes,
            send_backlog_most_seconds=self._most_sending_seconds,
            requests_made_late=self._made_late,
            most_in_flight=self._most_in_flight,
            bound_in_flight=bound_in_flight,
            client_refusals=self._refusals,
            back_off_seconds=self._held_up_seconds,
        )

    def close(self) -> None:
        """Watch nothing any more."""
        if self._alarm is not None:
            self._alarm.close()
            self._alarm = None

    def _reset(self, now_seconds: float) -> None:
        self._began_seconds = now_seconds
        self.flow_seconds = 0.0
        self._is_flowing = True
        self._flowed_seconds = now_seconds
        self._in_flight_seconds = 0.0
        self._held_up_seconds = 0.0
        self._most_in_flight = self.in_flight
        self._refusals = 0
        self._sent = 0
        self._made_late = 0
        self._most_unsent_bytes = 0
        self._most_sending_seconds = 0.0
        self._most_backlog_requests = 0
        self._most_backlog_bytes = 0
        self._schedule_lags: array[float] = array("d")
        self._lags = array("d")
        self._used = self._cpu_seconds()

    def _flow(self, now_seconds: float) -> None:
        # ends are told in the order of their being noticed, so that one may lie before what was told last.
        if self._is_flowing and now_seconds > self._flowed_seconds:
            self._in_flight_seconds += self.in_flight * (now_seconds - self._flowed_seconds)
            self._held_up_seconds += self.held_up * (now_seconds - self._flowed_seconds)
            self._flowed_seconds = now_seconds

    def _lag(self) -> None:
        self._catch_up()
        if self._alarm is not None:
            self._alarm.set(self._due_seconds)

    def _catch_up(self) -> None:
        """Count every ring that is due by now: a loop that stood still was late for each one that it missed."""
        if self._alarm is None:
            return
        now_seconds = time.monotonic()
        missed = max(0, math.floor((now_seconds - self._due_seconds) / LAG_SECONDS) + 1)
        lag_seconds = now_seconds - self._due_seconds
        self._lags.extend(max(0.0, lag_seconds - number * LAG_SECONDS) for number in range(missed))
        self._due_seconds += missed * LAG_SECONDS

    def _cpu_seconds(self) -> dict[str, float]:
        return {name: time.clock_gettime((~process << 3) | _CPU_CLOCK) for name, process in self._processes.items()}


def _not_negative(seconds: float | None) -> float | None:
    return None if seconds is None else max(0.0, seconds)
