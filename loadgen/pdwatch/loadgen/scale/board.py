"""What somebody who watches a run sees of it: the phase under way, and those that have ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from ..live import LiveHistogram
from ..plan import Phase
from ..row import RequestRow
from ..summary import Distribution, PhaseSummary
from ..transcript import Outcome
from ..validity import Validity

_LATENCIES: Final = {
    "time_to_first_token_seconds": ("TTFT", "from sending to the first token"),
    "time_per_output_token_seconds": ("TPOT", "mean time between tokens of a request"),
    "inter_token_seconds": ("ITL", "time between two tokens"),
    "end_to_end_seconds": ("E2E", "from sending to the last token"),
}
PERCENTS: Final = (50, 90, 99)
LIVE_COLUMNS: Final = {"figure": "Figure", "value": "Now", "p50": "p50", "p90": "p90", "p99": "p99", "note": "Means"}
ENDED_COLUMNS: Final = {
    "phase": "Phase",
    "complete": "Complete",
    "failed": "Failed",
    **{
        f"{short}_{name}": f"{title} {name}"
        for short, title in (("ttft", "TTFT"), ("tpot", "TPOT"), ("itl", "ITL"))
        for name in ("p50", "p90", "p99")
    },
    "tokens": "Tokens/s",
    "goodput": "Goodput",
    "validity": "Validity",
}

Rows = list[dict[str, str]]


class Board:
    """A Watcher that keeps what the two tabs show."""

    def __init__(self) -> None:
        self._title = "no phase yet"
        self._histograms = {name: LiveHistogram() for name in _LATENCIES}
        self._outcomes: Counter[Outcome] = Counter()
        self._figures: Mapping[str, Any] = {}
        self._ended: Rows = []
        self._validity = ""

    def begin(self, phase: Phase) -> None:
        """A phase begins."""
        self._title = f"{phase.arm}, {phase.load.kind}, {phase.load.title(phase.level)}"
        self._histograms = {name: LiveHistogram() for name in _LATENCIES}
        self._outcomes.clear()
        self._figures = {}

    def row(self, row: RequestRow) -> None:
        """A request of it has ended."""
        self._outcomes[row.outcome] += 1
        if row.outcome is not Outcome.COMPLETE:
            return
        for name, histogram in self._histograms.items():
            value = getattr(row, name)
            if value is not None:
                for seconds in (value,) if isinstance(value, float) else value:
                    histogram.add(seconds)

    def progress(self, figures: Mapping[str, Any]) -> None:
        """The run has come that far."""
        self._figures = figures

    def end(self, summary: PhaseSummary, validity: Validity) -> None:
        """A phase has ended."""
        self._validity = "valid" if validity.is_valid else f"INVALID: {'; '.join(validity.reasons)}"
        row = {
            "phase": self._title,
            "complete": str(summary.complete),
            "failed": str(summary.failed),
            "tokens": _number(summary.output_tokens_per_second),
            "goodput": "–" if summary.goodput is None else _share(summary.goodput.share),
            "validity": self._validity,
        }
        for short, name in zip(("ttft", "tpot", "itl"), _LATENCIES, strict=False):
            found = summary.latencies.get(name)
            row |= {f"{short}_p{percent}": _of(found, percent) for percent in PERCENTS}
        self._ended.append(row)

    def live(self) -> Rows:
        """The tab of the phase under way."""
        live = self._figures.get("live", {})
        rows = [_line("Phase", self._title, "warm-up and cool-down count in this tab")]
        for name, (title, note) in _LATENCIES.items():
            histogram = self._histograms[name]
            values = {f"p{percent}": _time(histogram.percentile(percent)) for percent in PERCENTS}
            rows.append(_line(title, "", f"{note}; complete requests, ±0.5 %") | values)
        rows += [
            _line(
                "Output tokens/s", _number(live.get("output_tokens_per_second")), "of requests ended in the last 5 s"
            ),
            _line("Requests/s", _number(live.get("complete_per_second")), "complete, in the last 5 s"),
            _line("Goodput", _share(live.get("good_share")), "share of requests within the SLO; – without one"),
            _line("In flight", str(self._figures.get("in_flight", "–")), "requests sent and not ended"),
            _line("Complete", str(self._outcomes[Outcome.COMPLETE]), "answers with all that was promised"),
        ]
        rows += [
            _line(
                f"Outcome {outcome.value}", str(count), "given up by us" if outcome is Outcome.CANCELLED else "failure"
            )
            for outcome, count in sorted(self._outcomes.items())
            if outcome is not Outcome.COMPLETE
        ]
        lag_seconds = self._figures.get("loop_lag_seconds")
        rows.append(_line("Loop lag, most", _time(lag_seconds), "how late the client's own loop came round"))
        known = f"phase before: {self._validity}" if self._validity else "judged at the phase's end"
        rows.append(_line("Validity", known, "whether the client was the limit"))
        return rows

    def ended(self) -> Rows:
        """The tab of the phases that have ended."""
        return list(self._ended)


def _line(figure: str, value: str, note: str) -> dict[str, str]:
    return {"figure": figure, "value": value, "p50": "", "p90": "", "p99": "", "note": note}


def _of(found: Distribution | None, percent: int) -> str:
    return "–" if found is None else _time(getattr(found, f"p{percent}"))


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{seconds:.3f} s" if seconds >= 1 else f"{seconds * 1000:.2f} ms"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"
