"""Options: what they become in the plan, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pdwatch.gate.errors import GateError
from pdwatch.gate.load.options import LoadOptions, driver_arguments
from pdwatch.gate.load.plan import make_load_plan
from pdwatch.gate.load.probe import Server
from pdwatch.gate.load.run import phase_name
from pdwatch.loadgen import LoadgenError, Plan

URL = "http://127.0.0.1:1"
SERVER = Server("small", ("small",), "sglang", "it answers /server_info")
TRACE = '{"timestamp": 5, "input_length": 20, "output_length": 4, "hash_ids": [1]}\n'


def plan(model: str = "small", **options: Any) -> Plan:
    return make_load_plan(LoadOptions(URL, **options), Server(model, (model,), "sglang", "as asked"))


def test_defaults() -> None:
    made = plan()
    assert [(phase.level, phase.load.kind, phase.requests) for phase in made.phases] == [
        (1, "closed", None),
        (4, "closed", None),
        (16, "closed", None),
    ]
    assert (made.phases[0].warmup_seconds, made.phases[0].window_seconds) == (3, 20)
    assert (made.source.kind, made.cancel_rate, made.dialect, made.slo, made.search) == (
        "text",
        0,
        "sglang",
        None,
        None,
    )
    # what the embedded model was taught is what it is asked
    assert plan(model="tiny-toolcaller").source.kind == "tool_calls"


@pytest.mark.parametrize(
    ("options", "names", "loads"),
    [
        ({"levels": "1,16"}, ["1 user", "16 users"], ["closed", "closed"]),
        ({"levels": "8", "ramp": 2.0}, ["8 users"], ["ramp"]),
        ({"levels": "8", "stagger": 0.1}, ["8 users"], ["closed"]),
        ({"rate": "2,0.5"}, ["2 req/s", "0.5 req/s"], ["open", "open"]),
        ({"rate": "2", "arrivals": "gamma", "burstiness": 0.25}, ["2 req/s"], ["open"]),
        ({"waves": "16,17"}, ["waves of 16, 17"], ["waves"]),
    ],
)
def test_shapes(options: dict[str, Any], names: list[str], loads: list[str]) -> None:
    made = plan(**options)
    assert [phase_name(phase) for phase in made.phases] == names
    assert [phase.load.kind for phase in made.phases] == loads


def test_a_replay_takes_its_requests_from_the_trace(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(TRACE)
    made = plan(replay=trace, speed=2.0)
    assert (made.phases[0].load.kind, made.source.kind, made.phases[0].warmup_seconds) == ("replay", "mooncake", 0)
    trace.write_text('{"timestamp_seconds": 0, "body": {"messages": []}}\n')
    assert plan(replay=trace).source.model_dump()["order"] == "file"


def test_a_search_has_one_phase() -> None:
    made = plan(find_capacity=True, slo="ttft=1s", levels="4,8", most=64.0, slo_share=0.9)
    assert made.search is not None
    assert (len(made.phases), made.search.start, made.search.most, made.search.target_share) == (1, 4, 64, 0.9)
    rates = plan(find_capacity=True, slo="ttft=1s", rate="0.5")
    assert rates.search is not None
    assert (rates.search.kind, rates.search.start) == ("rate", 0.5)


def test_workloads(tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    file.write_text("{}\n")
    assert plan(workload=f"openai:{file}", max_tokens=9).source.model_dump()["max_tokens"] == 9
    assert plan(workload=f"sharegpt:{file}").source.kind == "sharegpt"
    assert plan(workload="bfcl:multiple").source.model_dump()["slices"] == ("multiple",)
    assert plan(workload="tool_calls").source.model_dump()["has_rules"]
    words = plan(prompt_words="100-400", max_tokens=32, ignore_eos=True).source.model_dump()
    assert (words["fewest_words"], words["most_words"], words["min_tokens"], words["ignore_eos"]) == (
        100,
        400,
        32,
        True,
    )
    # relative paths are of whoever typed them, not of the load generator's process
    assert plan(workload=f"openai:{file}").source.model_dump()["path"].is_absolute()


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ({}, ()),
        ({"processes": 3}, ("--processes", "3")),
        ({"expect_workers": 2, "bind": "0.0.0.0:7"}, ("--expect-workers", "2", "--bind", "0.0.0.0:7")),
        ({"web": "127.0.0.1:8089"}, ("--processes", "1", "--web", "127.0.0.1:8089")),
    ],
)
def test_several_drivers_have_a_leader(options: dict[str, Any], arguments: tuple[str, ...]) -> None:
    assert driver_arguments(LoadOptions(URL, **options)) == arguments


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"levels": "one"}, "--levels `one` is no list of numbers: write it as --levels 1,16,64"),
        ({"levels": "0"}, "--levels `0` has 0: every number must be above 0"),
        ({"levels": "4,4"}, "--levels `4,4` names a level twice"),
        ({"levels": "1", "rate": "2"}, "--levels is for users in closed loop: leave it out, or leave out --rate"),
        ({"rate": "nan"}, "--rate `nan` has nan"),
        ({"rate": "0"}, "--rate `0` has 0"),
        ({"rate": "1", "waves": "2"}, "--rate and --waves are two shapes of load"),
        ({"rate": "1", "stagger": 0.1}, "--stagger is for users in closed loop"),
        ({"rate": "1", "burstiness": 0.5}, "burstiness is 0.5 with poisson arrivals"),
        ({"find_capacity": True}, "--find-capacity needs limits to meet: add --slo"),
        ({"find_capacity": True, "slo": "ttft=1s", "waves": "2"}, "--find-capacity varies users or --rate"),
        ({"find_capacity": True, "slo": "ttft=1s", "levels": "9", "most": 8.0}, "search.most is 8"),
        ({"slo": "fast"}, "SLO 'fast' is no limit"),
        ({"workload": "poems"}, "--workload `poems` is none: use text, tool_calls"),
        ({"workload": "openai"}, "--workload `openai` is none"),
        ({"workload": "openai:nowhere.jsonl"}, "--workload file `nowhere.jsonl` is not there"),
        ({"workload": "bfcl:poems"}, "source"),
        ({"workload": "tool_calls", "prompt_words": "9"}, "--prompt-words is for --workload text"),
        ({"workload": "tool_calls", "ignore_eos": True}, "--ignore-eos is for --workload text and mooncake"),
        ({"prompt_words": "many"}, "--prompt-words `many` is no size: write it as 200 or 100-400"),
        ({"prompt_words": "400-100"}, "most_words is 100, less than fewest_words = 400"),
        ({"processes": 2, "expect_workers": 2}, "--processes starts workers here, --expect-workers waits for others'"),
        ({"bind": "0.0.0.0:5557"}, "--bind is where workers of other machines join: add --expect-workers N"),
        ({"replay": Path("nowhere.jsonl")}, "trace nowhere.jsonl cannot be read"),
    ],
)
def test_refused_in_one_line(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises((GateError, LoadgenError)) as caught:
        plan(**options)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)
