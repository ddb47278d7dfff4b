"""Choice of the indexer's best positions, eager PyTorch reference."""

from __future__ import annotations

import torch
from torch import Tensor


def select_topk(logits: Tensor, count: int) -> Tensor:
    """The `count` positions of the highest logits in each row.

    logits  [rows, width] float32 or float64; -inf marks a position that must not be chosen, NaN is not allowed

    Returns [rows, count] int64: the chosen positions in ascending order, then -1 for "none". A row with at most `count`
    candidates gets all of them: the identity 0..n-1 when they are its first n positions.

    Tie rule: of equal logits the lower position wins (+0.0 and -0.0 are equal). Dead positions score exactly 0, so ties
    at the boundary are common; with this rule the choice does not depend on the width, the batch or the backend.
    """
    rows, width = logits.shape
    best = min(count, width)
    if logits.dtype == torch.float32:
        top = _ordered_key(logits).topk(best, dim=-1, sorted=False).indices
    else:
        top = logits.sort(dim=-1, descending=True, stable=True).indices[:, :best]
    chosen = top.masked_fill(logits.gather(1, top) == float("-inf"), width).sort(dim=-1).values
    chosen.masked_fill_(chosen == width, -1)
    if best < count:
        chosen = torch.cat([chosen, chosen.new_full((rows, count - best), -1)], dim=-1)
    return chosen


def _ordered_key(logits: Tensor) -> Tensor:
    """An int64 for each float32 logit that orders by value, then by lower position; no two of a row are equal."""
    # adding +0.0 turns -0.0 into +0.0. The bits of a negative float order backwards, so its magnitude is flipped.
    bits = (logits + 0.0).view(torch.int32)
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(torch.int64)
    positions = torch.arange(logits.shape[-1], device=logits.device)
    return ordered.mul_(1 << 32).sub_(positions)
