"""The embedded model as a trainable network, whole sequences at a time.

A layer has one latent head shared by keys and values (K == V), several query heads each with a sink (a logit without a
value), rotary positions on the last dimensions that are undone on the attention output, and a lightning indexer that
chooses `topk` of the positions older than a sliding window: `sum over heads of w * relu(q . k)`. This is DeepSeek-V4's
attention in small. The serving engine computes the same function from its paged caches (model.py).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

Mode = Literal["dense", "index", "sparse"]

# a masked logit: low enough to vanish in a softmax, finite so that a row without any position stays finite.
MASKED = -1e9


@dataclass(frozen=True, slots=True)
class Shape:
    """Dimensions of the network, as stored beside the weights."""

    vocab: int = 272
    dim: int = 256
    layers: int = 4
    heads: int = 4
    head_dim: int = 64
    rope_dim: int = 32
    rope_base: float = 10000.0
    ffn: int = 512
    ngram: int = 4
    norm_eps: float = 1e-6
    idx_heads: int = 4
    idx_dim: int = 32
    idx_rope_dim: int = 16
    window: int = 64
    topk: int = 64

    def as_json(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)


def normalised(x: Tensor, epsilon: float) -> Tensor:
    """x over its root mean square, in float32."""
    return x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + epsilon)


def angles(length: int, dimensions: int, base: float, device: torch.device) -> Tensor:
    """Rotary angles of positions 0 … length−1: [length, dimensions / 2]."""
    frequency = base ** (-torch.arange(0, dimensions, 2, device=device).float() / dimensions)
    return torch.outer(torch.arange(length, device=device).float(), frequency)


def rotated(x: Tensor, angle: Tensor, sign: int = 1) -> Tensor:
    """x with its last 2·angle.shape[-1] dimensions rotated pairwise by ±angle."""
    width = 2 * angle.shape[-1]
    even, odd = x[..., -width:].reshape(*x.shape[:-1], -1, 2).unbind(-1)
    cosine, sine = angle.cos(), angle.sin() * sign
    turned = torch.stack([even * cosine - odd * sine, even * sine + odd * cosine], -1).flatten(-2)
    return torch.cat([x[..., :-width], turned], -1)


def _linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


class Attention(nn.Module):
    """Sparse latent attention with its indexer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.q = _linear(shape.dim, shape.heads * shape.head_dim)
        self.kv = _linear(shape.dim, shape.head_dim)
        self.o = _linear(shape.heads * shape.head_dim, shape.dim)
        self.q_norm = nn.Parameter(torch.ones(shape.head_dim))
        self.kv_norm = nn.Parameter(torch.ones(shape.head_dim))
        # starts low, so that a sink takes nothing from a model that was trained without it.
        self.sink = nn.Parameter(torch.full((shape.heads,), -4.0))
        self.idx_q = _linear(shape.dim, shape.idx_heads * shape.idx_dim)
        self.idx_k = _linear(shape.dim, shape.idx_dim)
        self.idx_w = _linear(shape.dim, shape.idx_heads)

    def index_scores(self, x: Tensor, angle: Tensor) -> Tensor:
        """The indexer's score of every pair of query and key position: [batch, length, length]."""
        shape, (batch, length, _) = self.shape, x.shape
        query = self.idx_q(x).view(batch, length, shape.idx_heads, -1).transpose(1, 2).float()
        query = rotated(query, angle).to(x.dtype)
        key = rotated(normalised(self.idx_k(x), shape.norm_eps), angle).to(x.dtype)
        agreement: Tensor = (query @ key[:, None].transpose(-1, -2)).float().relu()
        weighted: Tensor = agreement * self.idx_w(x).float().transpose(1, 2)[..., None]
        scale: float = (shape.idx_heads * shape.idx_dim) ** -0.5
        return weighted.sum(1) * scale

    def forward(self, x: Tensor, angle: Tensor, index_angle: Tensor, mode: Mode) -> tuple[Tensor, Tensor | None]:
        """x [batch, length, dim] to the attention output and, unless dense, the indexer's figures [3, batch, length]:
        its cross-entropy against the attention mass beyond the window, the mass its choice keeps, the whole mass."""
        shape, (batch, length, _) = self.shape, x.shape
        projected = self.q(x)
        kind = projected.dtype
        query = normalised(projected.view(batch, length, shape.heads, -1), shape.norm_eps) * self.q_norm
        query = rotated(query.transpose(1, 2), angle).to(kind)
        latent = rotated((normalised(self.kv(x), shape.norm_eps) * self.kv_norm)[:, None], angle).to(kind)
        if mode == "dense":
            output = functional.scaled_dot_product_attention(query, latent, latent, is_causal=True, enable_gqa=True)
            figures = None
        else:
            output, figures = self._explicit(x, query, latent, index_angle, mode)
        output = rotated(output.float(), angle, -1).to(kind)
        return self.o(output.transpose(1, 2).reshape(batch, length, -1)), figures

    def _explicit(
        self, x: Tensor, query: Tensor, latent: Tensor, index_angle: Tensor, mode: Mode
    ) -> tuple[Tensor, Tensor]:
        shape, length, kind = self.shape, x.shape[1], query.dtype
        position = torch.arange(length, device=x.device)
        age = position[:, None] - position
        near, far = (age >= 0) & (age < shape.window), age >= shape.window
        logits = (query @ latent.transpose(-1, -2)).float() * shape.head_dim**-0.5
        scores = self.index_scores(x.detach().to(kind), index_angle).masked_fill(~far, MASKED)
        with torch.no_grad():
            wanted = logits.masked_fill(age < 0, MASKED).softmax(-1).mean(1) * far
        crossentropy = -(wanted * scores.log_softmax(-1)).sum(-1)
        if mode == "index":
            kept, allowed = torch.zeros_like(crossentropy), age >= 0
        else:
            best = scores.detach().topk(min(shape.topk, length), -1).indices
            chosen = torch.zeros(scores.shape, dtype=torch.bool, device=x.device).scatter_(-1, best, True) & far
            kept, allowed = (wanted * chosen).sum(-1), (near | chosen)[:, None]
        logits = logits.masked_fill(~allowed, MASKED)
        open_share = torch.sigmoid(logits.logsumexp(-1, keepdim=True) - self.sink[:, None, None])
        output = (logits.softmax(-1).to(kind) @ latent) * open_share
        return output, torch.stack([crossentropy, kept, wanted.sum(-1)])


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.w1, self.w3 = _linear(shape.dim, shape.ffn), _linear(shape.dim, shape.ffn)
        self.w2 = _linear(shape.ffn, shape.dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))  # type: ignore[no-any-return]  # nn.Module is untyped


class Block(nn.Module):
    """One layer: attention and feed-forward, each after a norm and added to the stream."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.epsilon = shape.norm_eps
        self.n1, self.n2 = nn.Parameter(torch.ones(shape.dim)), nn.Parameter(torch.ones(shape.dim))
        self.attn, self.ffn = Attention(shape), FeedForward(shape)

    def forward(self, x: Tensor, angle: Tensor, index_angle: Tensor, mode: Mode) -> tuple[Tensor, Tensor | None]:
        output, figures = self.attn(normalised(x, self.epsilon) * self.n1, angle, index_angle, mode)
        x = x + output
        return x + self.ffn(normalised(x, self.epsilon) * self.n2), figures


class Network(nn.Module):
    """The whole model; the input embedding is a sum over the last `ngram` tokens."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed = nn.Parameter(torch.randn(shape.ngram, shape.vocab, shape.dim) * 0.1)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.Parameter(torch.ones(shape.dim))
        self.head = _linear(shape.dim, shape.vocab)
        # what adds to the stream starts at nothing, everything else at 0.7 of unit gain.
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                silent = name.endswith(("attn.o.weight", "ffn.w2.weight"))
                nn.init.normal_(parameter, std=0.0 if silent else 0.7 * parameter.shape[1] ** -0.5)

    def forward(self, tokens: Tensor, pad: int, mode: Mode) -> tuple[Tensor, Tensor | None]:
        """tokens [batch, length] to logits [batch, length, vocab] and each layer's indexer figures."""
        shape, length = self.shape, tokens.shape[1]
        grams = [functional.pad(tokens, (back, 0), value=pad)[:, :length] for back in range(shape.ngram)]
        rows = torch.stack([gram + back * shape.vocab for back, gram in enumerate(grams)], -1)
        x = functional.embedding(rows, self.embed.flatten(0, 1)).sum(-2)
        angle = angles(length, shape.rope_dim, shape.rope_base, tokens.device)
        index_angle = angles(length, shape.idx_rope_dim, shape.rope_base, tokens.device)
        figures = []
        for block in self.blocks:
            x, layer_figures = block(x, angle, index_angle, mode)
            figures.append(layer_figures)
        logits = self.head(normalised(x, shape.norm_eps) * self.norm)
        return logits, None if mode == "dense" else torch.stack(figures)
