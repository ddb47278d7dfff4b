"""The engine on real tasks: batching, prefix cache, retraction, transfer, cancellation and scoring change no answer."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from pdwatch.stack.embedded import checkpoint
from pdwatch.stack.embedded.config import EngineConfig
from pdwatch.stack.embedded.curriculum import sample
from pdwatch.stack.embedded.engine import Engine
from pdwatch.stack.embedded.errors import ConfigurationError, ContextTooLong, RequestRejected, TransferError
from pdwatch.stack.embedded.request import FinishReason, Output, PrefillDone, Request, SamplingParameters
from pdwatch.stack.embedded.tokens import EOS

WEIGHTS = Path(checkpoint.__file__).parent / "weights" / "tiny_toolcaller.safetensors"
Task = tuple[list[int], list[int]]


def held_out(count: int, limit: int) -> list[Task]:
    """Tasks whose prompt is longer than top-k + window = 128 tokens."""
    source = random.Random(20_000 + limit)
    tasks: list[Task] = []
    while len(tasks) < count:
        prompt, answer = sample(source, 1024)
        if 200 <= len(prompt) and len(prompt) + len(answer) <= limit:
            tasks.append((prompt, answer))
    return tasks


TASKS = held_out(20, 640)
ANSWERS = {str(number): answer for number, (_, answer) in enumerate(TASKS)}


def make(**settings: Any) -> Engine:
    """An engine with the prefix cache off unless asked for."""
    return Engine(EngineConfig(**{"prefix_cache": False, "num_pages": 600, **settings}), WEIGHTS)


def request(number: int, prompt: list[int] | None = None, **fields: Any) -> Request:
    """Task `number`, as a request of its own room."""
    sampling = fields.pop("sampling", SamplingParameters(max_new_tokens=300))
    return Request(str(number), list(prompt or TASKS[number][0]), sampling, room=number, **fields)


def drain(engine: Engine) -> list[Output]:
    """Steps until nothing is left to do."""
    outputs = []
    while engine.has_work:
        for output in engine.step():
            assert isinstance(output, Output)
            outputs.append(output)
    return outputs


def joined(outputs: list[Output]) -> dict[str, list[int]]:
    """Tokens by request."""
    tokens: dict[str, list[int]] = {}
    for output in outputs:
        tokens.setdefault(output.rid, []).extend(output.new_token_ids)
    return tokens


def run(engine: Engine) -> list[Output]:
    """All tasks through a unified engine."""
    for number in range(len(TASKS)):
        engine.submit(request(number))
    return drain(engine)


def transfer(prefill: Engine, decode: Engine, done: PrefillDone) -> None:
    """Sends all pages of a prefilled request and installs it."""
    for page in range(done.kv.pages):
        decode.write_page(done.rid, page, done.kv.read(page))
    prefill.transfer_done(done.rid)
    decode.install(done.rid, done.first_token, done.first_logprob, done.tokens, done.cached_tokens)


def run_pair(prefill: Engine, decode: Engine) -> list[Output]:
    """All tasks through a prefill and a decode engine."""
    for number in range(len(TASKS)):
        prefill.submit(request(number))
        decode.reserve(request(number))
    outputs: list[Output] = []
    ready: list[PrefillDone] = []
    while prefill.has_work or decode.has_work or ready:
        ready += [done for done in prefill.step() if isinstance(done, PrefillDone)]
        for done in [done for done in ready if decode.receivable(done.rid)]:
            ready.remove(done)
            transfer(prefill, decode, done)
        outputs += [output for output in decode.step() if isinstance(output, Output)]
    return outputs


@pytest.mark.parametrize("batch", [1, 16], ids=lambda batch: f"batch-{batch}")
def test_answers_are_exact(batch: int) -> None:
    engine = make(max_running_requests=batch)
    outputs = run(engine)

    assert joined(outputs) == ANSWERS
    assert max(output.running_batch for output in outputs) == batch
    assert engine.load.used_tokens == 0
    assert engine.statistics.finished == len(TASKS)


def test_the_prefix_cache_changes_no_answer() -> None:
    engine = make(prefix_cache=True)
    run(engine)
    first_hits = engine.load.prefix_hit_tokens
    outputs = run(engine)

    assert joined(outputs) == ANSWERS
    # every full page of every prompt, except the one that would leave nothing to compute.
    assert engine.load.prefix_hit_tokens - first_hits == sum((len(prompt) - 1) // 64 * 64 for prompt, _ in TASKS)
    assert all(output.cached_tokens >= 128 for output in outputs)
    assert engine.load.cached_tokens > 0
    assert engine.flush_cache()
    assert engine.load.cached_tokens == 0


@pytest.mark.parametrize("cache", [False, True], ids=["cache-off", "cache-on"])
def test_retraction_changes_no_answer(cache: bool) -> None:
    # answers grow over many pages of 8 tokens, and admission keeps only one spare for each running request.
    engine = make(page_size=8, num_pages=200, max_running_requests=16, prefix_cache=cache)
    outputs = run(engine)

    assert joined(outputs) == ANSWERS
    assert engine.statistics.retracted > 0
    assert max(output.num_retractions for output in outputs) > 0
    assert engine.load.used_tokens == 0


def test_chunked_prefill_changes_no_answer() -> None:
    engine = make(max_prefill_tokens=100)

    assert joined(run(engine)) == ANSWERS
    assert engine.statistics.steps["prefill_none"] == sum(-(-len(prompt) // 100) for prompt, _ in TASKS)


@pytest.mark.parametrize("pages", [1200, 200], ids=["ample", "retracting"])
def test_a_pair_gives_the_same_answers(pages: int) -> None:
    prefill = make(role="prefill", page_size=8, num_pages=1200, prefix_cache=True)
    decode = make(role="decode", page_size=8, num_pages=pages)

    assert joined(run_pair(prefill, decode)) == ANSWERS
    assert (decode.statistics.retracted > 0) == (pages == 200)
    assert prefill.load.used_tokens == decode.load.used_tokens == 0


def test_the_first_output_of_a_pair_carries_the_prefill_workers_token() -> None:
    prefill, decode = make(role="prefill"), make(role="decode")
    prefill.submit(request(0, return_logprob=True, top_logprobs=2))
    decode.reserve(request(0, return_logprob=True, top_logprobs=2))
    (done,) = prefill.step()
    assert isinstance(done, PrefillDone)
    transfer(prefill, decode, done)
    (output,) = [output for output in decode.step() if output.rid == "0"][:1]

    assert isinstance(output, Output)
    assert output.new_token_ids == [done.first_token] == TASKS[0][1][:1]
    assert output.logprobs == [done.first_logprob]


def test_a_stop_token_and_the_length_end_a_request() -> None:
    engine = make()
    third = TASKS[0][1][2]
    engine.submit(request(0, sampling=SamplingParameters(max_new_tokens=300, stop_token_ids=(third,))))
    engine.submit(request(1, sampling=SamplingParameters(max_new_tokens=4)))
    engine.submit(request(2, sampling=SamplingParameters(max_new_tokens=len(ANSWERS["2"]) + 2, ignore_eos=True)))
    engine.submit(request(3))
    outputs = drain(engine)

    finishes = {output.rid: output.finish for output in outputs if output.finish}
    tokens = joined(outputs)
    assert finishes["0"] == FinishReason("stop", matched=third)
    assert finishes["1"] == FinishReason("length")
    assert tokens["1"] == ANSWERS["1"][:4]
    assert finishes["2"] == FinishReason("length")
    assert tokens["2"][:-2] == ANSWERS["2"]
    assert finishes["3"] == FinishReason("stop", matched=EOS)


@pytest.mark.parametrize("cache", [False, True], ids=["cache-off", "cache-on"])
def test_teacher_forcing_scores_like_decoding(cache: bool) -> None:
    prompt, answer = TASKS[0]
    engine = make(prefix_cache=cache, max_prefill_tokens=150)
    engine.submit(request(0, return_logprob=True, top_logprobs=3))
    decoded = [entry for output in drain(engine) for entry in output.logprobs or []]
    scoring = SamplingParameters(max_new_tokens=0)
    engine.submit(
        request(
            1, prompt + answer, sampling=scoring, return_logprob=True, top_logprobs=3, logprob_start=len(prompt) - 1
        )
    )
    (output,) = drain(engine)

    assert output.finish == FinishReason("length")
    assert output.new_token_ids == []
    scored = output.prompt_logprobs
    assert scored is not None
    # the entry of the prompt's last token, which nothing scores, then one for each answer token.
    assert scored[0] is None
    assert [entry.token for entry in scored[1:] if entry] == answer
    assert output.cached_tokens == ((len(prompt) - 1) // 64 * 64 if cache else 0)
    for forced, free in zip(scored[1:], decoded, strict=True):
        assert forced is not None
        assert forced.logprob == pytest.approx(free.logprob, abs=1e-3)
        assert forced.top[0][1] == free.top[0][1] == forced.token


def test_scoring_from_the_start_covers_the_whole_prompt() -> None:
    engine = make(role="prefill", max_prefill_tokens=64)
    prompt = TASKS[0][0]
    engine.submit(Request("0", prompt, SamplingParameters(max_new_tokens=0), return_logprob=True, logprob_start=0))
    (output,) = drain(engine)

    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    assert [entry.token for entry in output.prompt_logprobs[1:] if entry] == prompt[1:]


def test_an_abort_frees_a_request_wherever_it_is() -> None:
    engine = make(max_running_requests=2)
    for number in range(3):
        engine.submit(request(number))
    for _ in range(6):
        engine.step()
    assert (engine.load.running, engine.load.waiting) == (2, 1)

    assert engine.abort("0")
    assert engine.abort("2")
    assert not engine.abort("2")
    assert not engine.abort("unknown")
    outputs = drain(engine)

    aborted = {output.rid for output in outputs if output.finish and output.finish.type == "abort"}
    assert aborted == {"0", "2"}
    assert joined(outputs)["1"] == ANSWERS["1"][-len(joined(outputs)["1"]) :]
    assert engine.load.used_tokens == 0
    assert engine.statistics.aborted == 2


def test_pages_of_an_aborted_reservation_stay_until_its_transfer_ends() -> None:
    prefill, decode = make(role="prefill"), make(role="decode")
    prefill.submit(request(0))
    decode.reserve(request(0))
    (done,) = prefill.step()
    assert isinstance(done, PrefillDone)
    decode.write_page("0", 0, done.kv.read(0))
    used = decode.load.used_tokens

    assert decode.abort("0")
    assert not decode.abort("0")
    assert not decode.receivable("0")
    assert decode.load.used_tokens == used == done.kv.pages * 64
    # bytes under way still have a place to land.
    decode.write_page("0", 1, done.kv.read(1))
    with pytest.raises(TransferError, match="was aborted"):
        decode.install("0", done.first_token, None, done.tokens, 0)
    decode.transfer_ended("0")
    assert decode.load.used_tokens == 0
    assert [output.finish.type for output in drain(decode) if output.finish] == ["abort"]


def test_pages_of_an_aborted_prefill_stay_until_they_are_sent() -> None:
    engine = make(role="prefill")
    engine.submit(request(0))
    (done,) = engine.step()
    assert isinstance(done, PrefillDone)

    assert engine.abort("0")
    assert engine.load.inflight_queue == 1
    assert len(done.kv.read(0)) == engine.page_bytes
    engine.transfer_done("0")
    assert engine.load.used_tokens == 0
    with pytest.raises(TransferError, match="given back"):
        done.kv.read(0)


def test_reservations_wait_for_pages_in_order() -> None:
    need = -(-len(TASKS[0][0]) // 64)
    longest = max(-(-len(prompt) // 64) for prompt, _ in TASKS)
    decode = make(role="decode", num_pages=1 + need + longest, context_length=64 * longest)
    new = SamplingParameters(max_new_tokens=1)
    decode.reserve(request(0, sampling=new))
    decode.reserve(Request("long", [1] * (64 * longest - 1), new))
    decode.reserve(Request("short", [1], new))

    # the long one fits the free pages, but leaves none for the first to grow into; the short one may not overtake.
    assert [decode.receivable(rid) for rid in ("0", "long", "short")] == [True, False, False]
    assert decode.load.prealloc_queue == 2
    decode.abort("0")
    decode.transfer_ended("0")
    assert [decode.receivable(rid) for rid in ("long", "short")] == [True, True]


def test_a_transfer_is_checked() -> None:
    decode = make(role="decode")
    decode.reserve(request(0))
    pages = -(-len(TASKS[0][0]) // 64)

    with pytest.raises(TransferError, match=f"page {pages} of request 0 does not exist"):
        decode.write_page("0", pages, bytes(decode.page_bytes))
    with pytest.raises(TransferError, match="request 1 has no reserved pages"):
        decode.write_page("1", 0, bytes(decode.page_bytes))
    with pytest.raises(TransferError, match=f"lacks {pages} of {pages} pages"):
        decode.install("0", 1, None, len(TASKS[0][0]), 0)
    with pytest.raises(TransferError, match="prompt tokens here, 5 on the prefill side"):
        decode.install("0", 1, None, 5, 0)
    with pytest.raises(TransferError, match="first token 272"):
        decode.install("0", 272, None, len(TASKS[0][0]), 0)


def test_requests_that_cannot_be_served() -> None:
    engine, decode, prefill = make(num_pages=9), make(role="decode"), make(role="prefill")
    engine.submit(request(0, [1, 2]))

    with pytest.raises(RequestRejected, match="request id 0 is in use"):
        engine.submit(request(0, [1, 2]))
    with pytest.raises(RequestRejected, match="empty prompt"):
        engine.submit(Request("1", []))
    with pytest.raises(RequestRejected, match="token 272 of request 1 is not in the vocabulary"):
        engine.submit(Request("1", [272]))
    # 8 usable pages of 64 tokens.
    with pytest.raises(ContextTooLong, match=r"needs 513 tokens .* KV pool has 512"):
        engine.submit(Request("1", [1], SamplingParameters(max_new_tokens=512)))
    with pytest.raises(ContextTooLong, match="context length has 4096"):
        engine.submit(Request("1", [1] * 4096, SamplingParameters(max_new_tokens=1)))
    with pytest.raises(RequestRejected, match="a decode engine takes it through reserve"):
        decode.submit(Request("1", [1]))
    with pytest.raises(RequestRejected, match="this engine's role is unified"):
        engine.reserve(Request("1", [1]))
    with pytest.raises(RequestRejected, match="has no room"):
        prefill.submit(Request("1", [1]))
    assert not engine.flush_cache()


def test_unknown_names_are_errors() -> None:
    with pytest.raises(ConfigurationError, match="kernels `fast` do not exist, use one of: eager"):
        make(kernels="fast")
    with pytest.raises(ConfigurationError, match=r"fault `gremlin` does not exist, use one of: first_token_other_room"):
        make(fault="gremlin")


def test_seeded_sampling_does_not_depend_on_the_batch() -> None:
    sampling = SamplingParameters(max_new_tokens=40, temperature=1.5, top_p=0.95, seed=9)
    alone, crowded = make(), make()
    alone.submit(request(5, sampling=sampling))
    for number in range(8):
        crowded.submit(request(number, sampling=sampling))

    assert joined(drain(alone))["5"] == joined(drain(crowded))["5"]
