"""The model: prefill of a chunk of one sequence and one decode step of a batch, both over the paged pool.

A layer, for the hidden state x at position i:

    h = rms_norm(x) * n1
    x = x + o(rotate(attention(q(h), kv), -i))       one shared K==V latent row a token, its tail rotated by position
    x = x + w2(silu(w1(g)) * w3(g)),                 g = rms_norm(x) * n2

Attention runs over the indexer's choice of positions and a sliding window; see `pdwatch.kernels`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from pdwatch.kernels import KernelTable
from pdwatch.stack.embedded.config import ModelConfig
from pdwatch.stack.embedded.overlap import SingleStream
from pdwatch.stack.embedded.pool import KvPool
from pdwatch.stack.embedded.rows import DecodeInputs
from pdwatch.stack.embedded.tokens import PAD

# query tokens of a prefill whose scores exist at once: bounds memory and spends nothing on keys that come later.
PREFILL_BLOCK: Final = 256
_ONE_STREAM: Final = SingleStream()


@dataclass(frozen=True, slots=True)
class _Layer:
    """Parameters of a layer; matrices are [input, output]."""

    attention_norm: Tensor
    query_latent: Tensor
    query_norm: Tensor
    latent_norm: Tensor
    sink: Tensor
    attention_output: Tensor
    index_query: Tensor
    index_key: Tensor
    index_weight: Tensor
    ffn_norm: Tensor
    ffn_input: Tensor
    ffn_output: Tensor


class Model:
    """Parameters, rotary tables and the two forward passes. Holds no request state."""

    def __init__(
        self,
        config: ModelConfig,
        parameters: Mapping[str, Tensor],
        kernels: KernelTable,
        context_length: int,
        device: str = "cpu",
    ) -> None:
        self.config = config
        self.device = torch.device(device)
        self._kernels = kernels
        weights = {name: tensor.to(self.device) for name, tensor in parameters.items()}
        self._layers = [_layer(config, weights, f"blocks.{index}.") for index in range(config.layers)]
        self._embedding = weights["embed"].reshape(config.ngram * config.vocab, config.dim).contiguous()
        self._gram_offsets = torch.arange(config.ngram, device=self.device) * config.vocab
        self._norm = weights["norm"]
        self._head = weights["head.weight"].T.contiguous()
        self._scale = config.head_dim**-0.5
        self._phases = _phases(context_length, config.rope_dim, config.rope_base, self.device)
        self._index_phases = _phases(context_length, config.idx_rope_dim, config.rope_base, self.device)

    def prefill(
        self, tokens: Sequence[int], start: int, pool: KvPool, pages: Sequence[int], logits_from: int
    ) -> Tensor:
        """Computes positions `start`..len(tokens)-1 of one sequence and writes their KV.

        tokens       the sequence from its first token; the KV of the first `start` is in the pool already
        pages        pages of the sequence, in order
        logits_from  first position whose logits are wanted, >= start

        Returns logits [len(tokens) - logits_from, vocab]; row j predicts token logits_from + j + 1.
        """
        config = self.config
        end = len(tokens)
        slots = self._slots(pages, end, pool.page_size)
        phases = self._phases[start:end]
        index_phases = self._index_phases[start:end]
        lengths = torch.arange(start + 1, end + 1, device=self.device)
        hidden = self._embed(self._grams(tokens, start))
        for layer, latent_pool, key_pool in zip(self._layers, pool.latent, pool.index_key, strict=True):
            normed = functional.rms_norm(hidden, (config.dim,), layer.attention_norm, config.norm_eps)
            query, latent = self._rotated(layer, *self._split(normed @ layer.query_latent), phases)
            latent_rows = latent_pool.view(-1, config.head_dim)
            latent_rows.index_copy_(0, slots[start:], latent)
            key_rows = key_pool.view(-1, config.idx_dim)
            key_rows.index_copy_(0, slots[start:], self._index_key(layer, normed, index_phases))
            index_query, index_weights = self._index_query(layer, normed, index_phases)
            context, keys = latent_rows.index_select(0, slots), key_rows.index_select(0, slots)
            attended = torch.empty_like(query)
            for first in range(0, end - start, PREFILL_BLOCK):
                block = slice(first, first + PREFILL_BLOCK)
                visible = min(start + first + PREFILL_BLOCK, end)
                logits = self._kernels.indexer_logits_prefill(
                    index_query[block], keys[:visible], index_weights[block], lengths[block], config.window
                )
                selected = self._kernels.select_topk(logits, config.topk)
                attended[block], _ = self._kernels.sparse_mla_prefill(
                    query[block], context[:visible], selected, lengths[block], layer.sink, config.window, self._scale
                )
            hidden = self._finish_layer(layer, hidden, attended, phases)
        return self._logits(hidden[logits_from - start :])

    def decode(self, inputs: DecodeInputs, pool: KvPool, streams: SingleStream = _ONE_STREAM) -> Tensor:
        """One token of every row: writes its KV and returns logits [batch, vocab] for the next token."""
        config = self.config
        # a padding row has length 0; it stands at position 0 of the padding page.
        lengths = inputs.lengths.clamp(min=1)
        phases = self._phases.index_select(0, lengths - 1)
        index_phases = self._index_phases.index_select(0, lengths - 1)
        hidden = self._embed(inputs.grams)
        for layer, latent_pool, key_pool in zip(self._layers, pool.latent, pool.index_key, strict=True):
            normed = functional.rms_norm(hidden, (config.dim,), layer.attention_norm, config.norm_eps)
            with streams.fork():
                selected = self._select(layer, normed, index_phases, inputs, lengths, key_pool)
            packed = normed @ layer.query_latent
            if streams.releases_early:
                streams.released(normed.data_ptr(), normed.nbytes)
                del normed
            query, latent = self._split(packed)
            streams.allocated(query)
            query, latent = self._rotated(layer, query, latent, phases)
            streams.allocated(query)
            latent_pool.view(-1, config.head_dim).index_copy_(0, inputs.write_slots, latent)
            streams.join()
            attended, _ = self._kernels.sparse_mla_decode(
                query, latent_pool, inputs.block_table, selected, lengths, layer.sink, config.window, self._scale
            )
            hidden = self._finish_layer(layer, hidden, attended, phases)
        return self._logits(hidden)

    def _select(
        self,
        layer: _Layer,
        normed: Tensor,
        phases: Tensor,
        inputs: DecodeInputs,
        lengths: Tensor,
        key_pool: Tensor,
    ) -> Tensor:
        """The indexer of a decode step: writes index-K of the new token, then scores and selects positions."""
        key = self._index_key(layer, normed, phases)
        key_pool.view(-1, self.config.idx_dim).index_copy_(0, inputs.write_slots, key)
        query, weights = self._index_query(layer, normed, phases)
        logits = self._kernels.indexer_logits(query, key_pool, weights, inputs.index_table, lengths, self.config.window)
        return self._kernels.select_topk(logits, self.config.topk)

    def _split(self, packed: Tensor) -> tuple[Tensor, Tensor]:
        """Query [tokens, heads, head_dim] and latent [tokens, head_dim] of their common projection."""
        width = self.config.head_dim
        return packed[:, :-width].contiguous().view(-1, self.config.heads, width), packed[:, -width:]

    def _rotated(self, layer: _Layer, query: Tensor, latent: Tensor, phases: Tensor) -> tuple[Tensor, Tensor]:
        """Query and latent, normed and rotated."""
        width, epsilon = (self.config.head_dim,), self.config.norm_eps
        query = functional.rms_norm(query, width, layer.query_norm, epsilon)
        latent = functional.rms_norm(latent, width, layer.latent_norm, epsilon)
        return _rotate_tail(query, phases[:, None]), _rotate_tail(latent, phases)

    def _index_key(self, layer: _Layer, normed: Tensor, phases: Tensor) -> Tensor:
        key = functional.rms_norm(normed @ layer.index_key, (self.config.idx_dim,), eps=self.config.norm_eps)
        return _rotate_tail(key, phases)

    def _index_query(self, layer: _Layer, normed: Tensor, phases: Tensor) -> tuple[Tensor, Tensor]:
        """Rotated index query [tokens, idx_heads, idx_dim] and scaled weights [tokens, idx_heads]."""
        query = (normed @ layer.index_query).view(-1, self.config.idx_heads, self.config.idx_dim)
        return _rotate_tail(query, phases[:, None]), normed @ layer.index_weight

    def _finish_layer(self, layer: _Layer, hidden: Tensor, attended: Tensor, phases: Tensor) -> Tensor:
        attended = _rotate_tail(attended, phases.conj()[:, None]).flatten(1)
        hidden = torch.addmm(hidden, attended, layer.attention_output)
        normed = functional.rms_norm(hidden, (self.config.dim,), layer.ffn_norm, self.config.norm_eps)
        gate, value = (normed @ layer.ffn_input).chunk(2, dim=-1)
        return torch.addmm(hidden, functional.silu(gate) * value, layer.ffn_output)

    def _logits(self, hidden: Tensor) -> Tensor:
        return functional.rms_norm(hidden, (self.config.dim,), self._norm, self.config.norm_eps) @ self._head

    def _embed(self, grams: Tensor) -> Tensor:
        rows = (grams + self._gram_offsets).flatten()
        return self._embedding.index_select(0, rows).view(*grams.shape, -1).sum(1)

    def _grams(self, tokens: Sequence[int], start: int) -> Tensor:
        """The last `ngram` tokens at every position from `start`, newest first, PAD before the sequence: [n, ngram]."""
        ngram = self.config.ngram
        padded = torch.tensor([PAD] * (ngram - 1) + list(tokens), device=self.device)
        return padded[start:].unfold(0, ngram, 1).flip(1)

    def _slots(self, pages: Sequence[int], tokens: int, page_size: int) -> Tensor:
        first = torch.tensor(pages, device=self.device)[:, None] * page_size
        return (first + torch.arange(page_size, device=self.device)).flatten()[:tokens]


def _layer(config: ModelConfig, weights: Mapping[str, Tensor], prefix: str) -> _Layer:
    def matrix(*names: str) -> Tensor:
        return torch.cat([weights[f"{prefix}{name}.weight"] for name in names]).T.contiguous()

    return _Layer(
        attention_norm=weights[f"{prefix}n1"],
        query_latent=matrix("attn.q", "attn.kv"),
        query_norm=weights[f"{prefix}attn.q_norm"],
        latent_norm=weights[f"{prefix}attn.kv_norm"],
        sink=weights[f"{prefix}attn.sink"],
        attention_output=matrix("attn.o"),
        index_query=matrix("attn.idx_q"),
        index_key=matrix("attn.idx_k"),
        # the scale of the indexer's scores, folded into the weights of its sum.
        index_weight=matrix("attn.idx_w") * (config.idx_heads * config.idx_dim) ** -0.5,
        ffn_norm=weights[f"{prefix}n2"],
        ffn_input=matrix("ffn.w1", "ffn.w3"),
        ffn_output=matrix("ffn.w2"),
    )


def _phases(positions: int, dim: int, base: float, device: torch.device) -> Tensor:
    """exp(i * position * base**(-2j/dim)) as complex64 [positions, dim / 2], computed in float64."""
    frequencies = base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angles = torch.outer(torch.arange(positions, dtype=torch.float64), frequencies)
    return torch.polar(torch.ones_like(angles), angles).to(torch.complex64).to(device)


def _rotate_tail(x: Tensor, phases: Tensor) -> Tensor:
    """Rotates the last 2 * phases.shape[-1] entries of `x`, as pairs of neighbours, in place."""
    pairs = x.view(*x.shape[:-1], -1, 2)[..., -phases.shape[-1] :, :]
    torch.view_as_complex(pairs).mul_(phases)
    return x
