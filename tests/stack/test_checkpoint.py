"""Checkpoints: a good one loads, each defect is one clear error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pdwatch.stack.embedded import checkpoint
from pdwatch.stack.embedded.errors import CheckpointError

WEIGHTS = Path(checkpoint.__file__).parent / "weights" / "tiny_toolcaller.safetensors"
Tensors = dict[str, torch.Tensor]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    for suffix in (".safetensors", ".json"):
        (tmp_path / f"copy{suffix}").write_bytes(WEIGHTS.with_suffix(suffix).read_bytes())
    return tmp_path / "copy.safetensors"


def test_the_shipped_checkpoint_loads_as_float32() -> None:
    config, parameters = checkpoint.load_checkpoint(WEIGHTS)

    assert parameters.keys() == checkpoint.parameter_shapes(config).keys()
    assert {tensor.dtype for tensor in parameters.values()} == {torch.float32}
    assert WEIGHTS.stat().st_size <= checkpoint.WEIGHTS_LIMIT_BYTES


def _drop(tensors: Tensors) -> None:
    del tensors["blocks.1.n1"]


def _add(tensors: Tensors) -> None:
    tensors["blocks.9.n1"] = torch.ones(256)


def _reshape(tensors: Tensors) -> None:
    tensors["norm"] = torch.ones(255)


def _integers(tensors: Tensors) -> None:
    tensors["norm"] = torch.ones(256, dtype=torch.int32)


def _poison(tensors: Tensors) -> None:
    tensors["head.weight"][3, 3] = float("nan")


@pytest.mark.parametrize(
    ("spoil", "defect"),
    [
        (_drop, r"lacks 1 parameters, the first is `blocks\.1\.n1`"),
        (_add, r"has 1 unknown parameters, the first is `blocks\.9\.n1`"),
        (_reshape, r"has `norm` of shape \(255,\), expected \(256,\)"),
        (_integers, r"has `norm` of dtype torch\.int32"),
        (_poison, r"has `head\.weight` with values that are not finite"),
    ],
    ids=["missing", "unknown", "shape", "dtype", "not-finite"],
)
def test_wrong_parameters(copy: Path, spoil: Callable[[Tensors], None], defect: str) -> None:
    tensors = load_file(copy)
    spoil(tensors)
    save_file(tensors, copy)

    with pytest.raises(CheckpointError, match=defect) as caught:
        checkpoint.load_checkpoint(copy)

    assert str(copy) in str(caught.value)
    assert checkpoint.REMEDY in str(caught.value)


@pytest.mark.parametrize(
    ("data", "defect"),
    [
        (b"", "is not a safetensors file"),
        (b"\x80\x04pickle", "is not a safetensors file"),
        (b"\xff" * 64, "is not a safetensors file"),
        (WEIGHTS.read_bytes()[:100_000], "is not a safetensors file"),
        (bytes(checkpoint.WEIGHTS_LIMIT_BYTES + 1), "is larger than 16777216 bytes"),
    ],
    ids=["empty", "pickle", "noise", "cut-off", "too-large"],
)
def test_corrupt_weights(copy: Path, data: bytes, defect: str) -> None:
    copy.write_bytes(data)

    with pytest.raises(CheckpointError, match=defect):
        checkpoint.load_checkpoint(copy)


@pytest.mark.parametrize(
    ("change", "defect"),
    [
        ({"heads": 0}, r"has a bad `config\.heads`"),
        ({"rope_dim": 128}, "rope_dim is 128, but head_dim is only 64"),
        ({"experts": 8}, r"has a bad `config\.experts`"),
        ({"colour": 1}, r"has a bad `config\.colour`"),
    ],
    ids=["no-heads", "rotary-too-wide", "experts", "unknown-key"],
)
def test_wrong_configuration(copy: Path, change: dict[str, Any], defect: str) -> None:
    path = copy.with_suffix(".json")
    document = json.loads(path.read_text())
    document["config"].update(change)
    path.write_text(json.dumps(document))

    with pytest.raises(CheckpointError, match=defect):
        checkpoint.load_checkpoint(copy)


@pytest.mark.parametrize("text", ["{", "[]", '{"config": 3}'], ids=["not-json", "no-object", "no-config"])
def test_a_configuration_that_is_none(copy: Path, text: str) -> None:
    copy.with_suffix(".json").write_text(text)

    with pytest.raises(CheckpointError, match=r"copy\.json"):
        checkpoint.load_checkpoint(copy)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"absent\.json cannot be read \(No such file or directory\)"):
        checkpoint.load_checkpoint(tmp_path / "absent.safetensors")
