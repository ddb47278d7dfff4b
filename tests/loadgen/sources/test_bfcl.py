"""The leaderboard's form, by rows of our own writing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pdwatch.loadgen import ExpectedCall, PlanError
from pdwatch.loadgen.sources import bfcl

FUNCTION = {
    "name": "garden.plant_tree",
    "description": "Plants a tree.",
    "parameters": {
        "type": "dict",
        "properties": {
            "kind": {"type": "string", "description": "What kind.", "enum": ["oak", "elm"]},
            "rows": {"type": "integer", "optional": True},
            "depth": {"type": "float", "default": 0.5},
            "spot": {"type": "tuple", "items": {"type": "float"}},
            "note": {"type": "any"},
            "owner": {"type": "dict", "properties": {"name": {"type": "string"}}, "required": ["name"]},
        },
        "required": ["kind"],
    },
}
QUESTION = "Plant an oak in 3 rows for Ada, 0.75 deep."


def write_slice(folder: Path, name: str, truths: list[Any] | None, functions: list[Any] | None = None) -> None:
    (folder / "possible_answer").mkdir(exist_ok=True)
    count = 1 if truths is None else len(truths)
    rows = [
        {
            "id": f"{name}_{row}",
            "question": [[{"role": "user", "content": QUESTION}]],
            "function": [FUNCTION] if functions is None else functions,
        }
        for row in range(count)
    ]
    (folder / f"BFCL_v4_{name}.json").write_text("\n".join(map(json.dumps, rows)))
    if truths is not None:
        lines = [json.dumps({"id": f"{name}_{row}", "ground_truth": truth}) for row, truth in enumerate(truths)]
        (folder / "possible_answer" / f"BFCL_v4_{name}.json").write_text("\n".join(lines))


def call(**arguments: Any) -> dict[str, Any]:
    return {"garden.plant_tree": arguments}


@pytest.fixture
def expected(open_kind, tmp_path: Path):
    """The expected calls of a row with the given truth, and its `expects`."""

    def find(truth: list[Any], name: str = "simple_python") -> tuple[tuple[ExpectedCall, ...], Any]:
        write_slice(tmp_path, name, [truth])
        work = open_kind("bfcl", folder=tmp_path, slices=[name]).work(0, "candidate")
        assert work.task is not None
        for known in work.task.expected_calls:
            jsonschema.validate(known.arguments, work.task.tools[0]["function"]["parameters"])
        return work.task.expected_calls, work.provenance.get("expects")

    return find


def test_schemas_become_json_schema(open_kind, tmp_path: Path) -> None:
    write_slice(tmp_path, "simple_python", [[call(kind=["oak"])]])
    work = open_kind("bfcl", folder=tmp_path, slices=["simple_python"]).work(0, "candidate")
    (tool,) = json.loads(work.body)["tools"]
    assert tool["function"]["name"] == "garden_plant_tree"
    parameters = tool["function"]["parameters"]
    jsonschema.Draft202012Validator.check_schema(parameters)
    assert parameters == {
        "type": "object",
        "properties": {
            "kind": {"type": "string", "description": "What kind.", "enum": ["oak", "elm"]},
            "rows": {"type": "integer"},
            "depth": {"type": "number", "default": 0.5},
            "spot": {"type": "array", "items": {"type": "number"}},
            "note": {},
            "owner": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
        },
        "required": ["kind"],
    }
    assert work.provenance["file"] == "BFCL_v4_simple_python.json"
    assert work.provenance["row"] == 1


@pytest.mark.parametrize(
    "arguments",
    [
        {"kind": ["oak"], "rows": [3]},
        {"kind": ["elm"], "depth": [0.75], "spot": [[0.5, 0.25]]},
        {"kind": ["oak"], "owner": [{"name": ["Ada"]}], "note": ["oak in 3 rows"]},
    ],
)
def test_one_right_answer_is_expected(expected, arguments: dict[str, Any]) -> None:
    values = {field: possible[0] for field, possible in arguments.items()}
    if "owner" in values:
        values["owner"] = {"name": "Ada"}
    assert expected([call(**arguments)]) == ((ExpectedCall("garden_plant_tree", values),), None)


@pytest.mark.parametrize(
    "arguments",
    [
        {"kind": ["oak", "elm"]},
        {"kind": ["oak"], "rows": ["", 3]},
        {"kind": ["oak"], "rows": []},
        {"kind": ["oak"], "depth": [1]},
        {"kind": ["oak"], "depth": [1.0]},
        {"kind": ["oak"], "spot": [[1, 2]]},
        {"kind": ["oak"], "note": ["not in the question"]},
        {"kind": ["oak"], "owner": [{"name": ["Ada", "ada"]}]},
        {"kind": ["oak"], "owner": [{}]},
        {"kind": ["oak"], "owner": ["Ada"]},
        {"kind": ["ash"]},
        {"rows": [3]},
        {"kind": ["oak"], "colour": ["oak"]},
        {"kind": ["oak"], "rows": ["3"]},
        {"kind": ["oak"], "note": [[{"a": 1}]]},
        {"kind": "oak"},
    ],
    ids=str,
)
def test_several_right_answers_expect_a_call(expected, arguments: dict[str, Any]) -> None:
    assert expected([call(**arguments)]) == ((), "call")


def test_parallel_calls_and_irrelevance(expected, open_kind, tmp_path: Path) -> None:
    calls, expects = expected([call(kind=["oak"]), call(kind=["elm"])], "parallel")
    assert [known.arguments for known in calls] == [{"kind": "oak"}, {"kind": "elm"}]
    assert expects is None
    for name, wanted in [("irrelevance", "no_call"), ("live_relevance", "call")]:
        write_slice(tmp_path, name, None, functions=[] if name == "irrelevance" else None)
        work = open_kind("bfcl", folder=tmp_path, slices=[name]).work(3, "candidate")
        assert work.provenance["expects"] == wanted
        assert ("tools" in json.loads(work.body)) == (name == "live_relevance")


def test_other_languages_are_asked_for_as_source_text(open_kind, tmp_path: Path) -> None:
    write_slice(tmp_path, "simple_java", [[call(kind=["oak"], rows=[3])], [call(kind=["oak"])]])
    source = open_kind("bfcl", folder=tmp_path, slices=["simple_java"], order="file")
    work, other = source.work(0, "candidate"), source.work(1, "candidate")
    properties = json.loads(work.body)["tools"][0]["function"]["parameters"]["properties"]
    assert {schema["type"] for schema in properties.values()} == {"string"}
    assert properties["kind"]["description"] == "What kind. A Java value of type string, as source text."
    assert work.provenance["expects"] == "call"
    assert other.task.expected_calls == (ExpectedCall("garden_plant_tree", {"kind": "oak"}),)


def test_slices_follow_one_another(open_kind, tmp_path: Path) -> None:
    write_slice(tmp_path, "simple_python", [[call(kind=["oak"])]] * 2)
    write_slice(tmp_path, "multiple", [[call(kind=["oak"])]] * 3)
    source = open_kind("bfcl", folder=tmp_path, slices=["simple_python", "multiple"], order="file")
    works = [source.work(number, "candidate") for number in range(6)]
    assert [(work.provenance["family"], work.provenance["row"]) for work in works] == [
        ("bfcl_simple_python", 1),
        ("bfcl_simple_python", 2),
        ("bfcl_multiple", 1),
        ("bfcl_multiple", 2),
        ("bfcl_multiple", 3),
        ("bfcl_simple_python", 1),
    ]


def test_where_it_comes_from(open_kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bfcl, "_PACKAGE", "bfcl_eval_of_nobody")
    with pytest.raises(PlanError, match="needs the package bfcl-eval, which is not installed: pip install --no-deps"):
        open_kind("bfcl")
    with pytest.raises(PlanError, match=r"slice 'simple_python' is not at .*BFCL_v4_simple_python.json: pip install"):
        open_kind("bfcl", folder=tmp_path)
    package = tmp_path / "bfcl_eval_of_nobody"
    (package / "data").mkdir(parents=True)
    # found, never imported: it would import every vendor's client
    (package / "__init__.py").write_text("raise RuntimeError")
    write_slice(package / "data", "irrelevance", None)
    monkeypatch.syspath_prepend(tmp_path)
    assert open_kind("bfcl", slices=["irrelevance"]).work(0, "candidate").provenance["expects"] == "no_call"


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ({"id": "x", "question": [[], []], "function": []}, "it needs an id, one question"),
        ({"question": [[{"role": "user"}]], "function": []}, "it needs an id"),
        ({"id": "x", "question": [["hi"]], "function": []}, "needs a list of messages"),
        ({"id": "x", "question": [[{"role": "user"}]], "function": [{"name": "f"}]}, "needs a name and parameters"),
        ({"id": "x", "question": [[{"role": "user"}]], "function": ["f"]}, "needs a name and parameters"),
        ([], "it needs an id"),
    ],
)
def test_bad_rows(open_kind, tmp_path: Path, row: Any, complaint: str) -> None:
    (tmp_path / "BFCL_v4_irrelevance.json").write_text(json.dumps(row))
    with pytest.raises(PlanError, match=f"BFCL_v4_irrelevance.json: line 1 .*{complaint}"):
        open_kind("bfcl", folder=tmp_path, slices=["irrelevance"])
    inner: dict[str, Any] = {"type": "string"}
    for _ in range(450):
        inner = {"type": "dict", "properties": {"a": inner}}
    write_slice(tmp_path, "irrelevance", None, functions=[{"name": "f", "parameters": inner}])
    with pytest.raises(PlanError, match="line 1 nests too deep; flatten or remove it"):
        open_kind("bfcl", folder=tmp_path, slices=["irrelevance"])
    write_slice(tmp_path, "multiple", [["no calls"]])
    with pytest.raises(PlanError, match=r"line 1 is .*it needs an id and a ground_truth of calls"):
        open_kind("bfcl", folder=tmp_path, slices=["multiple"])
