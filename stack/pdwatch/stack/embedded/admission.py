"""What a request must be, whatever the engine's role."""

from __future__ import annotations

from pdwatch.stack.embedded.config import EngineConfig, ModelConfig
from pdwatch.stack.embedded.errors import ContextTooLong, RequestRejected
from pdwatch.stack.embedded.request import Request


def check_request(request: Request, model: ModelConfig, engine: EngineConfig) -> None:
    """Raises RequestRejected or ContextTooLong for a request that could never finish."""
    prompt, generated = len(request.prompt_ids), max(request.sampling.max_new_tokens, 0)
    if not prompt:
        raise RequestRejected(f"request {request.rid} has an empty prompt")
    if request.logprob_start is not None and request.logprob_start < 0:
        raise RequestRejected(f"request {request.rid} has logprob_start {request.logprob_start}: 0 is the lowest")
    for token in (*request.prompt_ids, *request.token_ids_logprob):
        if not 0 <= token < model.vocab:
            raise RequestRejected(f"token {token} of request {request.rid} is not in the vocabulary of {model.vocab}")
    for limit, what in ((engine.context_length, "model's context length"), (engine.max_total_tokens, "KV pool")):
        if prompt + generated > limit:
            raise ContextTooLong(
                f"request {request.rid} needs {prompt + generated} tokens ({prompt} of the prompt, {generated} new), "
                f"the {what} has {limit}: shorten the prompt or lower max_new_tokens"
            )
