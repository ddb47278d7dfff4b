from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from pdwatch.stack.embedded.config import EngineConfig
from pdwatch.stack.embedded.curriculum import sample
from pdwatch.stack.embedded.dataset import HELD_OUT_SEED, generate
from pdwatch.stack.embedded.engine import Engine
from pdwatch.stack.embedded.muon import Muon
from pdwatch.stack.embedded.network import Network, Shape
from pdwatch.stack.embedded.request import Output, Request, SamplingParameters
from pdwatch.stack.embedded.template import render_answer, render_prompt
from pdwatch.stack.embedded.tokens import ASSISTANT, BOS, EOS, PAD
from pdwatch.stack.spec import DEFAULT_WEIGHTS


@pytest.fixture(scope="module")
def network() -> Network:
    """The shipped weights in the training network, in float32."""
    trained = Network(Shape())
    trained.load_state_dict({name: tensor.float() for name, tensor in load_file(DEFAULT_WEIGHTS).items()})
    return trained.eval()


def test_a_row_is_a_prompt_and_its_answer_and_padding() -> None:
    tasks = generate(512, 8, seed=5)
    for row, (start, end) in zip(tasks.tokens.tolist(), tasks.spans.tolist(), strict=True):
        assert row[0] == BOS and row[start - 1] == ASSISTANT and row[end - 1] == EOS
        assert row[end:] == [PAD] * (512 - end)


def test_tasks_depend_on_the_seed_alone_and_held_out_ones_are_others() -> None:
    first, again, held_out = (generate(512, 8, seed).tokens.numpy() for seed in (5, 5, HELD_OUT_SEED))
    assert np.array_equal(first, again)
    assert not {row.tobytes() for row in first} & {row.tobytes() for row in held_out}


def test_muon_moves_a_matrix_along_orthogonal_directions() -> None:
    source = torch.Generator().manual_seed(1)
    matrix = torch.nn.Parameter(torch.zeros(16, 32))
    matrix.grad = torch.randn(16, 32, generator=source)
    Muon([matrix]).step(rate=1.0, decay=0.0)
    # the update is scaled by 0.2 * sqrt(32); five iterations bring every singular value into 0.5 … 1.3.
    values = torch.linalg.svdvals(matrix.detach()) / (0.2 * 32**0.5)
    assert 0.5 < values.min() and values.max() < 1.3


def test_the_engine_scores_as_the_training_network_does(network: Network) -> None:
    prompt, answer = sample(random.Random(11), 1024)
    tokens = prompt + answer
    assert len(tokens) > 2 * (Shape().topk + Shape().window)
    with torch.inference_mode():
        expected = network(torch.tensor([tokens]), PAD, "sparse")[0][0].log_softmax(-1)
    engine = Engine(EngineConfig(role="unified", num_pages=64), DEFAULT_WEIGHTS)
    sampling = SamplingParameters(max_new_tokens=0)
    engine.submit(Request(rid="score", prompt_ids=tokens, sampling=sampling, return_logprob=True, logprob_start=0))
    (output,) = engine.step()
    assert isinstance(output, Output) and output.prompt_logprobs is not None
    scored = [entry.logprob for entry in output.prompt_logprobs if entry is not None]
    wanted = expected[:-1].gather(1, torch.tensor(tokens[1:])[:, None])[:, 0].tolist()
    # float32 in another order of sums; a wrong position or mask is off by nats.
    assert scored == pytest.approx(wanted, abs=5e-3)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        pytest.param("Please say plain words QX7R2M.", ("plain words QX7R2M", []), id="must not call"),
        pytest.param(
            'Please call book_room with count = 9007199254740993, city = "東京 🚀🔥".',
            (None, [("book_room", '{"city": "東京 🚀🔥", "count": 9007199254740993}')]),
            id="fields in the schema's order, beyond 2**53, outside ASCII",
        ),
    ],
)
def test_the_shipped_model_answers_a_task_of_its_family(text: str, answer: tuple[str | None, list]) -> None:
    properties = {"city": {"type": "string"}, "count": {"type": "integer"}}
    tool = {"type": "function", "function": {"name": "book_room", "parameters": {"properties": properties}}}
    engine = Engine(EngineConfig(role="unified", num_pages=64), DEFAULT_WEIGHTS)
    prompt = render_prompt([{"role": "user", "content": text}], [tool])
    engine.submit(Request(rid="task", prompt_ids=prompt, sampling=SamplingParameters(max_new_tokens=200)))
    received: list[int] = []
    while engine.has_work:
        for output in engine.step():
            assert isinstance(output, Output)
            received += output.new_token_ids
    assert received == render_answer(*answer)
