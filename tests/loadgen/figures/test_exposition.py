"""What Prometheus is shown."""

from __future__ import annotations

import socket
import urllib.request
from array import array

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from pdwatch.loadgen.errors import PlanError
from pdwatch.loadgen.exposition import Exposition, serve_exposition
from pdwatch.loadgen.load import OpenLoad
from pdwatch.loadgen.plan import Phase
from pdwatch.loadgen.slo import Slo
from pdwatch.loadgen.transcript import Outcome

PLACE = {"arm": "candidate", "level": "4", "load": "4 users"}
PHASE = Phase(index=0, arm="candidate", level=4)


def samples(exposition: Exposition) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(exposition)
    return registry


def test_figures(row, failure) -> None:
    exposition = Exposition(Slo(ttft_seconds=0.3, tpot_seconds=0.07))
    exposition.begin(PHASE)
    exposition.observe(row(0))
    exposition.observe(row(1, time_to_first_token_seconds=0.4, inter_token_seconds=array("d", [0.01, 0.02, 0.4])))
    exposition.observe(failure(2))
    exposition.set_gauges(in_flight=3, users=4)
    get = samples(exposition).get_sample_value
    assert get("pdwatch_loadgen_requests_total", {**PLACE, "outcome": "complete"}) == 2
    assert get("pdwatch_loadgen_requests_total", {**PLACE, "outcome": "reset"}) == 1
    assert get("pdwatch_loadgen_output_tokens_total", PLACE) == 18
    assert get("pdwatch_loadgen_good_requests_total", PLACE) == 0
    name = "pdwatch_loadgen_time_to_first_token_seconds"
    # the SLO's limit is an edge: exactly one of two is within it
    assert get(f"{name}_bucket", {**PLACE, "le": "0.3"}) == 1
    assert get(f"{name}_bucket", {**PLACE, "le": "+Inf"}) == get(f"{name}_count", PLACE) == 2
    assert get(f"{name}_sum", PLACE) == pytest.approx(0.6)
    # eight gaps of 0.1 s and three others
    assert get("pdwatch_loadgen_inter_token_seconds_count", PLACE) == 11
    assert get("pdwatch_loadgen_inter_token_seconds_bucket", {**PLACE, "le": "0.02"}) == 2
    assert get("pdwatch_loadgen_in_flight") == 3
    # nothing had a schedule
    assert get("pdwatch_loadgen_schedule_lag_seconds_count", PLACE) is None


def test_exemplars_lead_to_the_request(row) -> None:
    exposition = Exposition()
    exposition.observe(row(7, time_to_first_token_seconds=0.2))
    text = generate_latest(samples(exposition)).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    buckets = families["pdwatch_loadgen_time_to_first_token_seconds"].samples
    (with_one,) = [sample for sample in buckets if sample.exemplar]
    assert with_one.labels["le"] == "0.25"
    assert with_one.exemplar.labels == {"request_id": "candidate-0-measured-7"}
    # sent at 1.7e9, ended one second later
    assert float(with_one.exemplar.timestamp) == 1.7e9 + 1


def test_rates_are_told_apart(row) -> None:
    """All phases of `--rate 2,4` have one level, the bound in flight."""
    exposition = Exposition()
    for index, rate in enumerate((2.0, 4.0)):
        load = OpenLoad(kind="open", rate_per_second=rate)
        exposition.begin(Phase(index=index, arm="candidate", level=1024, load=load))
        for number in range(int(rate)):
            exposition.observe(row(number, level=1024))
    get = samples(exposition).get_sample_value
    for rate in (2, 4):
        place = {"arm": "candidate", "level": "1024", "load": f"{rate}/s"}
        assert get("pdwatch_loadgen_output_tokens_total", place) == 9 * rate
        assert get("pdwatch_loadgen_end_to_end_seconds_count", place) == rate


def test_expected_refusals_are_apart(failure) -> None:
    exposition = Exposition()
    exposition.begin(PHASE)
    exposition.observe(failure(0, outcome=Outcome.HTTP_ERROR, status=400, expects="http_error"))
    exposition.observe(failure(1, outcome=Outcome.HTTP_ERROR, status=503, expects="http_error"))
    get = samples(exposition).get_sample_value
    assert get("pdwatch_loadgen_requests_total", {**PLACE, "outcome": "expected_error"}) == 1
    assert get("pdwatch_loadgen_requests_total", {**PLACE, "outcome": "http_error"}) == 1


def test_names_are_ours(row) -> None:
    exposition = Exposition(Slo(e2e_seconds=1))
    exposition.observe(row(0))
    exposition.set_gauges(users=1)
    assert all(family.name.startswith("pdwatch_loadgen_") for family in exposition.collect())
    assert all(family.documentation for family in exposition.collect())


def test_served(row, free_port: int) -> None:
    exposition = Exposition()
    exposition.begin(PHASE)
    exposition.observe(row(0))
    close = serve_exposition(exposition, free_port)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{free_port}/metrics", timeout=10) as answer:
            assert (
                b'pdwatch_loadgen_requests_total{arm="candidate",level="4",load="4 users",outcome="complete"} 1.0'
                in answer.read()
            )
    finally:
        close()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        with pytest.raises(PlanError, match="choose another"):
            serve_exposition(exposition, listener.getsockname()[1])
