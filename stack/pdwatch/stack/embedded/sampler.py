"""Chooses the next token of each row and reports log-probabilities."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from pdwatch.stack.embedded.request import Request, TokenLogprob
from pdwatch.stack.embedded.sequence import SequenceState


class Sampler:
    """Greedy, or temperature and top-p.

    A random choice depends on the request's seed (or, without one, on its id and the engine's seed) and on the position
    of the token alone, so a request samples the same tokens in every batch and after a retraction.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def choose(self, logits: Tensor, sequences: Sequence[SequenceState]) -> list[int]:
        """One token for each row of logits [batch, vocab]."""
        tokens: list[int] = logits.argmax(dim=-1).tolist()
        for row, sequence in enumerate(sequences):
            if not sequence.request.sampling.greedy:
                tokens[row] = self._draw(logits[row], sequence)
        return tokens

    def logprobs(self, logits: Tensor, tokens: Sequence[int], request: Request) -> list[TokenLogprob]:
        """Log-probabilities of `tokens` under logits [tokens, vocab], at the request's temperature as in SGLang."""
        values = _scaled(logits, request).log_softmax(dim=-1)
        picked = values.gather(1, torch.tensor(tokens, device=values.device)[:, None]).squeeze(1).tolist()
        count = min(request.top_logprobs, values.shape[-1])
        best = values.topk(count, dim=-1)
        top = zip(best.values.tolist(), best.indices.tolist(), strict=True)
        chosen = values[:, list(request.token_ids_logprob)].tolist()
        return [
            TokenLogprob(
                token=token,
                logprob=logprob,
                top=tuple(zip(top_values, top_tokens, strict=True)),
                chosen=tuple(zip(chosen_values, request.token_ids_logprob, strict=True)),
            )
            for token, logprob, (top_values, top_tokens), chosen_values in zip(tokens, picked, top, chosen, strict=True)
        ]

    def score_prompt(self, logits: Tensor, sequence: SequenceState, first: int) -> None:
        """Appends log-probabilities of the prompt tokens after `first` to the sequence, one a row of logits.

        Row j, at position first + j, scores token first + j + 1; the last prompt token's row scores nothing yet. The
        list begins with None, for the first token asked about: nothing before it was scored.
        """
        if sequence.prompt_logprobs is None:
            sequence.prompt_logprobs = [None]
        targets = sequence.request.prompt_ids[first + 1 : first + 1 + len(logits)]
        sequence.prompt_logprobs += self.logprobs(logits[: len(targets)], targets, sequence.request)

    def _draw(self, logits: Tensor, sequence: SequenceState) -> int:
        sampling = sequence.request.sampling
        probabilities, order = _scaled(logits, sequence.request).softmax(dim=-1).sort(descending=True, stable=True)
        cumulative = probabilities.cumsum(dim=-1)
        # the smallest set whose mass reaches top_p; the best token is always in it.
        kept = max(int((cumulative - probabilities < sampling.top_p).sum()), 1)
        threshold = self._uniform(sequence) * float(cumulative[kept - 1])
        drawn = min(int((cumulative[:kept] <= threshold).sum()), kept - 1)
        return int(order[drawn])

    def _uniform(self, sequence: SequenceState) -> float:
        """A number in [0, 1) from the seed and the position of the token to come."""
        request = sequence.request
        seed = request.sampling.seed
        origin = f"request {request.rid} {self._seed}" if seed is None else f"seed {seed}"
        digest = hashlib.blake2b(f"{origin} position {len(sequence.tokens)}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") / 2**64


def _scaled(logits: Tensor, request: Request) -> Tensor:
    sampling = request.sampling
    return logits if sampling.greedy else logits / sampling.temperature
