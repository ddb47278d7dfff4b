"""Every key is known, every bad value is answered with one line that names it and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdwatch.gate.errors import PolicyError
from pdwatch.gate.policy import GatePolicy, load_policy, policy_keys

REFUSED = [
    pytest.param("load.levles=[1]", ["`load.levles`", "did you mean `load.levels`?"], id="misspelt"),
    pytest.param("levels=[1]", ["`levels`", "`load.levels`"], id="table-forgotten"),
    pytest.param("tpot_ratio=1.2", ["`tpot_ratio`", "`regression.tpot_ratio`"], id="table-forgotten-2"),
    pytest.param("nonsense.key=1", ["`nonsense`", "known tables are `load`"], id="unknown-table"),
    pytest.param("load=3", ["`load`", "table, not a value"], id="table-as-value"),
    pytest.param("load.levels=[0, 4]", ["level 0", "from 1 to 4096"], id="level-0"),
    pytest.param("load.levels=[-1]", ["level -1"], id="level-negative"),
    pytest.param("load.levels=[]", ["no level given"], id="no-level"),
    pytest.param("load.levels=[4, 4]", ["named twice"], id="level-twice"),
    pytest.param("load.levels=1;4", ["`1;4`", "commas"], id="levels-not-numbers"),
    pytest.param("load.window_seconds=0", ["`load.window_seconds`", "`0`", "greater than 0"], id="window-0"),
    pytest.param("load.cancel_rate=1", ["`load.cancel_rate`", "less than 1"], id="cancel-all"),
    pytest.param("regression.tpot_ratio=0.9", ["`regression.tpot_ratio`", "greater than 1"], id="ratio-below-1"),
    pytest.param("correctness.confidence=1", ["`correctness.confidence`"], id="certainty"),
    pytest.param("validity.min_running_batch=1", ["`validity.min_running_batch`"], id="batch-1"),
    pytest.param("targets.router=router:30000", ["`targets.router`", "`router:30000`"], id="url-without-scheme"),
    pytest.param("load.seed", ["`--set load.seed`", "no value"], id="no-value"),
]


@pytest.mark.parametrize(("assignment", "told"), REFUSED)
def test_refusals_name_the_value_and_the_remedy(assignment: str, told: list[str]) -> None:
    with pytest.raises(PolicyError) as refused:
        load_policy(assignments=[assignment])
    message = str(refused.value)
    assert "\n" not in message
    for part in told:
        assert part in message


def test_options_outrank_assignments_and_those_the_file(tmp_path: Path) -> None:
    file = tmp_path / "pdwatch.toml"
    file.write_text("[load]\nseed = 3\nwindow_seconds = 5\nwarmup_seconds = 1\n")
    policy = load_policy(file, ["load.seed=4", "load.window_seconds=6"], {"load.seed": 5, "load.levels": None})
    assert (policy.load.seed, policy.load.window_seconds, policy.load.warmup_seconds) == (5, 6, 1)
    assert policy.load.levels == GatePolicy().load.levels


def test_levels_come_in_any_order_and_form() -> None:
    assert load_policy(options={"load.levels": "16,1,4"}).load.levels == (1, 4, 16)
    assert load_policy(assignments=["load.levels=[32, 8]"]).load.levels == (8, 32)
    assert load_policy(options={"load.levels": "2"}).load.levels == (2,)


@pytest.mark.parametrize("content", ["[load\n", "\xff"], ids=["not-toml", "not-text"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: str) -> None:
    file = tmp_path / "pdwatch.toml"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(PolicyError, match=r"pdwatch\.toml"):
        load_policy(file)
    with pytest.raises(PolicyError, match="cannot read policy file"):
        load_policy(tmp_path / "absent.toml")


def test_the_policy_is_frozen_and_every_key_can_be_named() -> None:
    assert "load.levels" in policy_keys()
    assert "regression.tpot_ratio" in policy_keys()
    with pytest.raises(ValueError, match="frozen"):
        load_policy().load.seed = 2
