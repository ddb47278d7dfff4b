"""Loads a checkpoint: `<name>.safetensors` with its configuration `<name>.json` beside it. Never pickle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from torch import Tensor

from pdwatch.stack.embedded.config import ModelConfig
from pdwatch.stack.embedded.errors import CheckpointError

WEIGHTS_LIMIT_BYTES: Final = 16 * 1024 * 1024
CONFIGURATION_LIMIT_BYTES: Final = 1024 * 1024
REMEDY: Final = "restore both files from the repository or train them again (python -m pdwatch.stack.embedded.train)"

_DTYPES: Final = (torch.bfloat16, torch.float16, torch.float32)


def load_checkpoint(weights: Path) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The configuration and the parameters as float32 on the CPU.

    Names, shapes, dtypes and finiteness of every parameter are checked. Raises CheckpointError.
    """
    config = _load_config(weights.with_suffix(".json"))
    data = _read(weights, WEIGHTS_LIMIT_BYTES)
    try:
        tensors = load_tensors(data)
    except SafetensorError as error:
        raise _defect(weights, f"is not a safetensors file ({error})") from error
    shapes = parameter_shapes(config)
    if missing := sorted(shapes.keys() - tensors.keys()):
        raise _defect(weights, f"lacks {len(missing)} parameters, the first is `{missing[0]}`")
    if unknown := sorted(tensors.keys() - shapes.keys()):
        raise _defect(weights, f"has {len(unknown)} unknown parameters, the first is `{unknown[0]}`")
    parameters = {}
    for name, shape in shapes.items():
        tensor = tensors[name]
        if tuple(tensor.shape) != shape:
            raise _defect(weights, f"has `{name}` of shape {tuple(tensor.shape)}, expected {shape}")
        if tensor.dtype not in _DTYPES:
            raise _defect(weights, f"has `{name}` of dtype {tensor.dtype}, expected bfloat16, float16 or float32")
        parameters[name] = tensor.to(torch.float32)
        if not parameters[name].isfinite().all():
            raise _defect(weights, f"has `{name}` with values that are not finite")
    return config, parameters


def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter; a matrix is [output, input]."""
    dim, latent = config.dim, config.head_dim
    layer: dict[str, tuple[int, ...]] = {
        "n1": (dim,),
        "n2": (dim,),
        "attn.q.weight": (config.heads * latent, dim),
        "attn.kv.weight": (latent, dim),
        "attn.o.weight": (dim, config.heads * latent),
        "attn.q_norm": (latent,),
        "attn.kv_norm": (latent,),
        "attn.sink": (config.heads,),
        "attn.idx_q.weight": (config.idx_heads * config.idx_dim, dim),
        "attn.idx_k.weight": (config.idx_dim, dim),
        "attn.idx_w.weight": (config.idx_heads, dim),
        "ffn.w1.weight": (config.ffn, dim),
        "ffn.w2.weight": (dim, config.ffn),
        "ffn.w3.weight": (config.ffn, dim),
    }
    return {
        "embed": (config.ngram, config.vocab, dim),
        "norm": (dim,),
        "head.weight": (config.vocab, dim),
        **{f"blocks.{index}.{name}": shape for index in range(config.layers) for name, shape in layer.items()},
    }


def _load_config(path: Path) -> ModelConfig:
    try:
        document = json.loads(_read(path, CONFIGURATION_LIMIT_BYTES))
    except ValueError as error:
        raise _defect(path, f"is not JSON ({error})") from error
    if not isinstance(document, dict) or not isinstance(document.get("config"), dict):
        raise _defect(path, "has no object `config`")
    try:
        return ModelConfig.model_validate(document["config"])
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, ("config", *first["loc"])))
        raise _defect(path, f"has a bad `{place}`: {first['msg']}") from error


def _read(path: Path, limit_bytes: int) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(limit_bytes + 1)
    except OSError as error:
        raise _defect(path, f"cannot be read ({error.strerror})") from error
    if len(data) > limit_bytes:
        raise _defect(path, f"is larger than {limit_bytes} bytes")
    return data


def _defect(path: Path, defect: str) -> CheckpointError:
    return CheckpointError(f"checkpoint {path} {defect}: {REMEDY}")
