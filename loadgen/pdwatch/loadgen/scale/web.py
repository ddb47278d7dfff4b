"""Locust's web UI with our figures in it.

Two tabs are ours: the run as it is now, and the phases that have ended. Locust's own statistics and charts are fed with
the end-to-end time of complete requests, in milliseconds to one decimal (its own rounding to two digits is replaced);
requests that failed count as failures and have no time in them.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import gevent
import locust.stats
from flask import Response, jsonify, request
from locust.runners import STATE_RUNNING, STATE_STOPPED
from locust.web import WebUI

from ..errors import PlanError
from ..plan import Phase, Plan
from ..row import RequestRow
from ..transcript import Outcome
from .board import ENDED_COLUMNS, LIVE_COLUMNS, PERCENTS, Board
from .channel import LeadRunner

LIVE_KEY: Final = "streams"
ENDED_KEY: Final = "phases"


class WebBoard(Board):
    """The same, in the web UI at `host`:`port`."""

    def __init__(self, runner: LeadRunner, plan: Plan, host: str, port: int) -> None:
        """Raises PlanError when the port is taken."""
        super().__init__()
        self._runner = runner
        environment = runner.environment
        environment.host = ", ".join(sorted(set(plan.targets.values())))
        try:
            socket.create_server((host, port)).close()
        except OSError as error:
            raise PlanError(
                f"web UI: {host}:{port} cannot be listened on ({os.strerror(error.errno or 0)}); choose another"
            ) from None
        # documented as replaceable; ours keeps 0.1 ms.
        locust.stats.bucket_response_time = _tenths  # type: ignore[assignment]  # a module function replaced
        locust.stats.PERCENTILES_TO_CHART = [percent / 100 for percent in PERCENTS]
        self._web = WebUI(environment, host, port, delayed_start=True)
        self._web.template_args |= {
            "extended_tabs": [{"title": "LLM streams", "key": LIVE_KEY}, {"title": "LLM phases", "key": ENDED_KEY}],
            "extended_tables": [
                {"key": LIVE_KEY, "structure": _structure(LIVE_COLUMNS)},
                {"key": ENDED_KEY, "structure": _structure(ENDED_COLUMNS)},
            ],
        }
        app = self._web.app
        assert app is not None
        app.before_request(_refused(host, port))
        app.after_request(self._extended)
        # a page in the state before a run would show a form, and never look again.
        runner.update_state(STATE_RUNNING)
        self._web.start()  # type: ignore[no-untyped-call]  # Locust leaves it untyped
        # what a page that is opened later shows of the time before.
        self._history = gevent.spawn(locust.stats.stats_history, runner)

    def begin(self, phase: Phase) -> None:
        super().begin(phase)
        self._runner.update_state(STATE_RUNNING)

    def row(self, row: RequestRow) -> None:
        super().row(row)
        is_failure = row.is_failure
        has_time = row.outcome is Outcome.COMPLETE and row.end_to_end_seconds is not None
        self._runner.environment.events.request.fire(  # type: ignore[no-untyped-call]  # Locust leaves it untyped
            request_type="E2E",
            name=f"{row.arm}, level {row.level}",
            response_time=row.end_to_end_seconds * 1000 if has_time and row.end_to_end_seconds else None,
            response_length=row.response_bytes,
            exception=f"{row.outcome.value}: {row.outcome_detail}" if is_failure else None,
            context={},
        )

    def progress(self, figures: Mapping[str, Any]) -> None:
        super().progress(figures)
        self._runner.users = figures["in_flight"]
        self._runner.update_state(STATE_RUNNING)

    def close(self) -> None:
        """Serve no more."""
        self._history.kill()
        self._runner.update_state(STATE_STOPPED)
        with contextlib.suppress(AttributeError):
            # there is no server when its greenlet never ran.
            self._web.stop()  # type: ignore[no-untyped-call]  # Locust leaves it untyped

    def _extended(self, response: Response) -> Response:
        if request.path == "/stats/requests" and response.is_json:
            shown = [{"key": LIVE_KEY, "data": self.live()}, {"key": ENDED_KEY, "data": self.ended()}]
            response.set_data(jsonify({**response.get_json(), "extended_stats": shown}).get_data())
        return response


def _refused(host: str, port: int) -> Callable[[], Response | None]:
    """What refuses requests that nobody should make: other sites' (Locust allows them all), and for other users."""

    def refuse() -> Response | None:
        origin = request.headers.get("Origin")
        if request.method == "POST" and origin is not None and urlsplit(origin).netloc != request.host:
            return Response("made by another site", 403)
        if request.path == "/swarm":
            message = "The plan says what load there is; start another run to change it."
            return jsonify({"success": False, "message": message})
        return None

    return refuse


def _structure(columns: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "title": title} for key, title in columns.items()]


def _tenths(milliseconds: float) -> float:
    return round(milliseconds, 1)
