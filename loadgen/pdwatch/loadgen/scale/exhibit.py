"""The client's own metrics for Prometheus, of all workers together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..exposition import Exposition, serve_exposition
from ..plan import Phase, Plan
from ..row import RequestRow
from ..summary import PhaseSummary
from ..validity import Validity


class Exhibit:
    """A Watcher that serves `pdwatch_loadgen_*` at the plan's port."""

    def __init__(self, plan: Plan) -> None:
        """Raises PlanError when the port is taken."""
        assert plan.metrics_port is not None
        self._exposition = Exposition(plan.slo)
        self.close = serve_exposition(self._exposition, plan.metrics_port)

    def begin(self, phase: Phase) -> None:
        """A phase begins."""
        self._exposition.begin(phase)

    def row(self, row: RequestRow) -> None:
        """Count a request."""
        self._exposition.observe(row)

    def progress(self, figures: Mapping[str, Any]) -> None:
        """Show how many are in flight, of how many users, and the worst worker's loop lag."""
        self._exposition.set_gauges(**{name: figures[name] for name in ("in_flight", "users", "loop_lag_seconds")})

    def end(self, summary: PhaseSummary, validity: Validity) -> None:
        """Nothing to do."""
