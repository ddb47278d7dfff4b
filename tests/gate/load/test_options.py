"""Options: what they become in the plan, and what is refused."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from pdwatch.gate.commands.load import load
from pdwatch.gate.errors import GateError, OptionError
from pdwatch.gate.load.options import CLASHES, NEEDS, LoadOptions, Rule, driver_arguments, option
from pdwatch.gate.load.plan import make_load_plan
from pdwatch.gate.load.probe import Server
from pdwatch.gate.load.progress import phase_name
from pdwatch.gate.load.source import source_words
from pdwatch.loadgen import LoadgenError, Plan

URL = "http://127.0.0.1:1"
SERVER = Server("small", ("small",), "sglang", "as asked")
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
    made = plan(find_capacity=True, slo="ttft=1s", levels="4", most=64.0, slo_share=0.9)
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
        (
            {"levels": "1", "rate": "2"},
            "--levels and --rate: levels are users in closed loop, the other has none; leave out one of them",
        ),
        ({"rate": "nan"}, "--rate `nan` has nan"),
        ({"rate": "0"}, "--rate `0` has 0"),
        ({"rate": "1", "waves": "2"}, "--rate and --waves: they are two shapes of load"),
        ({"rate": "1", "burstiness": 0.5}, "burstiness is 0.5 with poisson arrivals"),
        (
            {"find_capacity": True},
            "--find-capacity needs limits to meet, as in --slo ttft=1s,tpot=50ms: add --slo, or leave it out",
        ),
        (
            {"find_capacity": True, "slo": "ttft=1s", "levels": "4,8"},
            "--find-capacity begins at one load and finds the others: give --levels one number, not `4,8`",
        ),
        ({"find_capacity": True, "slo": "ttft=1s", "rate": "1,2"}, "give --rate one number, not `1,2`"),
        ({"source": Path("nowhere.toml")}, "--source `nowhere.toml` cannot be read"),
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
        ({"processes": 2, "expect_workers": 2}, "--processes and --expect-workers: the one starts workers here"),
        (
            {"bind": "0.0.0.0:5557"},
            "--bind is where workers of other machines join: add --expect-workers, or leave it out",
        ),
        ({"replay": Path("nowhere.jsonl")}, "trace nowhere.jsonl cannot be read"),
    ],
)
def test_refused_in_one_line(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises((GateError, LoadgenError)) as caught:
        plan(**options)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


# what each option that needs another, or goes with none, may be given as.
VALUES: dict[str, Any] = {
    "slo": "ttft=1s",
    "check_slo": True,
    "slo_share": 0.5,
    "find_capacity": True,
    "most": 8.0,
    "most_minutes": 1.0,
    "arrivals": "constant",
    "burstiness": 0.5,
    "most_in_flight": 9,
    "repeats": 9,
    "speed": 2.0,
    "bind": "127.0.0.1:7",
    "rate": "2",
    "ramp": 1.0,
    "waves": "2",
    "replay": Path("trace.jsonl"),
    "levels": "3",
    "stagger": 0.1,
    "requests": 9,
    "duration": 9.0,
    "warmup": 9.0,
    "processes": 2,
    "expect_workers": 2,
    "insecure": True,
    "ca_file": Path("ca.pem"),
    "source": Path("source.toml"),
    "workload": "text",
    "prompt_words": "9",
    "max_tokens": 9,
    "ignore_eos": True,
}


@pytest.mark.parametrize("rule", NEEDS, ids=lambda rule: rule.field)
def test_an_option_that_would_do_nothing_is_refused(rule: Rule) -> None:
    with pytest.raises(
        OptionError, match=rf"^{option(rule.field)} .*: add .*{option(rule.others[-1])}, or leave it out$"
    ):
        LoadOptions(URL, **{rule.field: VALUES[rule.field]})


@pytest.mark.parametrize(
    ("field", "other"), [(rule.field, other) for rule in CLASHES for other in rule.others], ids=str
)
def test_an_option_that_would_be_ignored_is_refused(field: str, other: str) -> None:
    given = {name: VALUES[name] for name in (field, other)}
    # with what they need themselves, so that it is the pair that is refused.
    if "find_capacity" in given or "check_slo" in given:
        given["slo"] = VALUES["slo"]
    with pytest.raises(OptionError, match=rf"^{option(field)} and {option(other)}: .*; leave out one of them$"):
        LoadOptions(URL, **given)


def test_a_usual_value_that_was_typed_is_meant() -> None:
    LoadOptions(URL, replay=Path("trace.jsonl"), warmup=3.0)
    with pytest.raises(OptionError, match="--replay and --warmup"):
        LoadOptions(URL, replay=Path("trace.jsonl"), warmup=3.0, given=frozenset({"replay", "warmup"}))


def test_every_option_of_the_command_is_a_field() -> None:
    parameters = set(inspect.signature(load).parameters) - {"context", "out", "as_json", "quiet"}
    assert parameters == {field.name for field in fields(LoadOptions)} - {"given"}


TOML = """
kind = "tool_calls"
max_tokens = 64
sessions = { share = 0.5, fewest_turns = 2, most_turns = 3 }
shared_prefix = { groups = 2, tokens = 64 }

[workload]
families = { copy = 1.0 }
"""


def test_a_source_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "source.toml"
    file.write_text(TOML)
    made = plan(source=file)
    source = made.source.model_dump()
    assert (source["kind"], source["max_tokens"], source["sessions"]["most_turns"]) == ("tool_calls", 64, 3)
    assert made.workload.families == {"copy": 1.0}
    words = source_words(made.source)
    assert words.startswith("tool_calls: max_tokens 64, ")
    assert "sessions {share: 0.5, most_turns: 3}" in words


def test_a_source_from_json_with_a_path_beside_it(tmp_path: Path) -> None:
    (tmp_path / "asked.jsonl").write_text("{}\n")
    file = tmp_path / "source.json"
    file.write_text('{"kind": "openai_requests", "path": "asked.jsonl", "plants_nonce": true}')
    source = plan(source=file).source.model_dump()
    assert (source["path"], source["plants_nonce"]) == (tmp_path / "asked.jsonl", True)


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("source.toml", "kind = ", "is no TOML"),
        ("source.json", "[", "is no JSON"),
        ("source.toml", "max_tokens = 9", "has no `kind`: say which source it is"),
        ("source.toml", 'kind = "poems"', "the load cannot be run as asked: source"),
        ("source.toml", 'kind = "text"\nverses = 3', "source.text.verses"),
        ("source.toml", 'kind = "text"\nover_long_share = 0.5', "over_long_share is 0.5: give context_tokens"),
    ],
)
def test_a_source_that_is_none(tmp_path: Path, name: str, text: str, complaint: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises((GateError, LoadgenError)) as caught:
        plan(source=file)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def page_sources() -> list[str]:
    page = (Path(__file__).parents[3] / "docs" / "loadgen.md").read_text(encoding="utf-8")
    return re.findall(r"```toml\n(.*?)```", page, re.DOTALL)


@pytest.mark.parametrize("text", page_sources())
def test_the_page_s_examples_are_sources(tmp_path: Path, text: str) -> None:
    (tmp_path / "requests.jsonl").write_text("{}\n")
    file = tmp_path / "source.toml"
    file.write_text(text)
    assert plan(source=file).source.kind in text


def test_the_page_has_examples() -> None:
    assert len(page_sources()) >= 4


def test_answers_without_usage_are_asked_for_in_the_plan() -> None:
    assert plan().promises_usage
    assert not plan(has_no_usage=True).promises_usage


def test_a_search_has_a_time() -> None:
    made = plan(find_capacity=True, slo="ttft=1s", most_minutes=2.5)
    assert made.search is not None
    assert made.search.most_seconds == 150
