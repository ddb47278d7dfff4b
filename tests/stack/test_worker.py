"""Real worker processes: how they start and stop, and a prefill/decode pair behind the real router.

The model has random weights: its answers mean nothing, but a pair must give exactly those of a unified worker.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import save_file

from pdwatch.stack.embedded.checkpoint import parameter_shapes
from pdwatch.stack.embedded.config import ModelConfig

MODEL = {
    "vocab": 272, "dim": 64, "layers": 2, "heads": 2, "head_dim": 32, "rope_dim": 16, "rope_base": 10000.0, "ffn": 64,
    "ngram": 2, "norm_eps": 1e-6, "idx_heads": 2, "idx_dim": 16, "idx_rope_dim": 8, "window": 64, "topk": 64,
}  # fmt: skip
START_SECONDS = 60.0
TOOLS = [{"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}]


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "random.safetensors"
    generator = torch.Generator().manual_seed(0)
    shapes = parameter_shapes(ModelConfig.model_validate(MODEL))
    tensors = {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in shapes.items()}
    # EOS is made unlikely, so that answers have the length that was asked for.
    tensors["head.weight"][257] = 0.0
    save_file(tensors, path)
    path.with_suffix(".json").write_text(json.dumps({"config": MODEL}))
    return path


def configuration(weights: Path, role: str, port: int, **more: Any) -> dict[str, Any]:
    engine = {"num_pages": 512, "context_length": 1024} | more.pop("engine", {})
    return {"name": f"{role}-0", "role": role, "port": port, "weights": str(weights), "engine": engine} | more


def start_worker(config: dict[str, Any] | str, directory: Path) -> subprocess.Popen[str]:
    path = directory / f"{random.getrandbits(32):08x}.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    command = [sys.executable, "-m", "pdwatch.stack.embedded.worker", "--config", str(path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_until(url: str, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()[1][-2000:]
        try:
            if httpx.get(url, timeout=2).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.05)
    pytest.fail(f"{url} did not answer in {START_SECONDS} s")


def stop(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    process.send_signal(signal.SIGTERM)
    try:
        stdout, stderr = process.communicate(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, stdout, stderr


class Workers:
    """Addresses of the module's processes."""

    def __init__(self, unified: str, prefill: str, decode: str, router: str) -> None:
        self.unified, self.prefill, self.decode, self.router = unified, prefill, decode, router


@pytest.fixture(scope="module")
def workers(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    directory = tmp_path_factory.mktemp("workers")
    unified, prefill, bootstrap, decode, router, metrics = free_ports(6)
    urls = Workers(*(f"http://127.0.0.1:{port}" for port in (unified, prefill, decode, router)))
    processes = [
        start_worker(configuration(weights, "unified", unified), directory),
        start_worker(configuration(weights, "prefill", prefill, bootstrap_port=bootstrap), directory),
        start_worker(configuration(weights, "decode", decode), directory),
    ]
    try:
        for url, process in zip((urls.unified, urls.prefill, urls.decode), processes, strict=True):
            wait_until(f"{url}/health", process)
        arguments = ["--pd-disaggregation", "--prefill", urls.prefill, str(bootstrap), "--decode", urls.decode]
        arguments += ["--host", "127.0.0.1", "--port", str(router), "--prometheus-host", "127.0.0.1"]
        arguments += ["--prometheus-port", str(metrics), "--disable-retries", "--disable-circuit-breaker"]
        command = [sys.executable, "-m", "sglang_router.launch_router", *arguments]
        with open(directory / "router.log", "w") as log:
            processes.append(subprocess.Popen(command, stdout=log, stderr=log, text=True))
        wait_until(f"{urls.router}/readiness", processes[-1])
        yield urls
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()


def chat(prompt: str, **more: Any) -> dict[str, Any]:
    message = {"role": "user", "content": prompt}
    return {
        "model": "m",
        "messages": [message],
        "temperature": 0,
        "max_completion_tokens": 24,
        "ignore_eos": True,
    } | more


def prompts(count: int) -> list[str]:
    source = random.Random(5)
    return ["".join(source.choice("abcdefgh ") for _ in range(source.randint(20, 400))) for _ in range(count)]


def events(body: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in body.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def series(url: str) -> dict[str, float]:
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if line and not line.startswith("#")]
    totals: dict[str, float] = {}
    for name, value in pairs:
        family = name.split("{")[0].removeprefix("sglang:")
        totals[family] = totals.get(family, 0.0) + float(value)
    return totals


def settled(url: str) -> dict[str, float]:
    """Metrics once the worker has nothing in progress."""
    deadline = time.monotonic() + 20
    queues = (
        "num_running_reqs", "num_queue_reqs", "num_decode_prealloc_queue_reqs", "num_decode_transfer_queue_reqs",
        "num_prefill_bootstrap_queue_reqs", "num_prefill_inflight_queue_reqs", "num_used_tokens",
    )  # fmt: skip
    while time.monotonic() < deadline:
        now = series(url)
        if not any(now[name] for name in queues):
            return now
        time.sleep(0.02)
    pytest.fail(f"{url} still works: { {name: now[name] for name in queues} }")


async def contents(url: str, bodies: list[dict[str, Any]]) -> list[str]:
    async with httpx.AsyncClient(timeout=60) as client:
        answers = await asyncio.gather(*(client.post(f"{url}/v1/chat/completions", json=body) for body in bodies))
    for answer in answers:
        assert answer.status_code == 200, answer.text
    return [answer.json()["choices"][0]["message"]["content"] for answer in answers]


async def test_a_pair_answers_as_a_unified_worker_does(workers: Workers) -> None:
    bodies = [chat(prompt) for prompt in prompts(16)]
    alone = [(await contents(workers.unified, [body]))[0] for body in bodies]
    assert len(set(alone)) == 16
    before = settled(workers.prefill)
    assert await contents(workers.router, bodies) == alone
    after = settled(workers.prefill)
    assert after["kv_transfer_total_mb_count"] - before["kv_transfer_total_mb_count"] == 16


async def test_a_streamed_answer_is_the_whole_answer_in_pieces(workers: Workers) -> None:
    body = chat(prompts(1)[0])
    whole = httpx.post(f"{workers.unified}/v1/chat/completions", json=body).json()
    options = {"stream": True, "stream_options": {"include_usage": True}, "logprobs": True, "top_logprobs": 2}
    streamed = events(httpx.post(f"{workers.router}/v1/chat/completions", json=body | options).text)
    choices = [event["choices"][0] for event in streamed[:-1]]
    assert (
        "".join(choice["delta"].get("content", "") for choice in choices) == whole["choices"][0]["message"]["content"]
    )
    assert choices[0]["delta"] == {"reasoning_content": None, "role": "assistant", "content": ""}
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["length"]
    assert streamed[-1]["usage"] == whole["usage"]
    assert whole["usage"]["completion_tokens"] == 24
    scored = [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]
    assert len(scored) == 24
    assert all(entry["logprob"] == entry["top_logprobs"][0]["logprob"] for entry in scored)


async def test_clients_that_go_away_leave_nothing_behind(workers: Workers) -> None:
    async with httpx.AsyncClient(timeout=60) as client:

        async def give_up(number: int) -> None:
            body = chat(prompts(12)[number], stream=True, max_completion_tokens=500)
            async with client.stream("POST", f"{workers.router}/v1/chat/completions", json=body) as answer:
                if number % 3:
                    async for _ in answer.aiter_bytes():
                        return

        before = series(workers.decode)["num_aborted_requests_total"]
        await asyncio.gather(*(give_up(number) for number in range(12)))
    after = settled(workers.decode)
    assert after["num_aborted_requests_total"] - before == 12
    assert after["num_transfer_failed_reqs_total"] == 0
    assert settled(workers.prefill)["num_transfer_failed_reqs_total"] == 0


async def test_abort_request_ends_the_answer_with_abort(workers: Workers) -> None:
    body = chat("abc", stream=True, max_completion_tokens=900, rid="stop-me")
    async with (
        httpx.AsyncClient(timeout=60) as client,
        client.stream("POST", f"{workers.unified}/v1/chat/completions", json=body) as answer,
    ):
        text = ""
        async for piece in answer.aiter_text():
            if not text:
                await client.post(f"{workers.unified}/abort_request", json={"rid": "stop-me"})
            text += piece
    assert events(text)[-1]["choices"][0]["finish_reason"] == "abort"


async def test_a_pair_without_a_prefill_worker_fails_and_says_why(workers: Workers) -> None:
    port = free_ports(1)[0]
    body = chat("abc", bootstrap_host="127.0.0.1", bootstrap_port=port, bootstrap_room=1)
    answer = httpx.post(f"{workers.decode}/v1/chat/completions", json=body)
    assert answer.status_code == 500
    assert f"no route from the bootstrap server at 127.0.0.1:{port}" in answer.json()["message"]
    assert settled(workers.decode)["num_bootstrap_failed_reqs_total"] == 1


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_half_a_pair_refuses_a_request_without_a_room(workers: Workers, role: str) -> None:
    answer = httpx.post(f"{getattr(workers, role)}/v1/chat/completions", json=chat("abc"))
    assert answer.status_code == 400
    assert "without bootstrap room id" in answer.json()["message"]


async def test_a_prefill_worker_scores_for_the_fake_host(workers: Workers) -> None:
    body: dict[str, Any] = {
        "input_ids": [256, 258, *b"some words", 260, *b"answer"],
        "sampling_params": {"max_new_tokens": 0, "temperature": 0},
        "return_logprob": True,
        "logprob_start_len": 12,
        "top_logprobs_num": 20,
    }
    fake = {"bootstrap_host": "2.2.2.2", "bootstrap_room": 0}
    here = httpx.post(f"{workers.prefill}/generate", json=body | fake).json()["meta_info"]
    there = httpx.post(f"{workers.unified}/generate", json=body).json()["meta_info"]
    assert [entry[1] for entry in here["input_token_logprobs"]] == [260, *b"answer"]
    assert here["input_token_logprobs"][1:] == [
        pytest.approx(entry, abs=1e-4) for entry in there["input_token_logprobs"][1:]
    ]
    assert len(here["input_top_logprobs"][1]) == 20


async def test_a_pair_scores_the_prompt_as_a_unified_worker_does(workers: Workers) -> None:
    body: dict[str, Any] = {
        "input_ids": [256, 258, *b"some other words", 260],
        "sampling_params": {"max_new_tokens": 6, "temperature": 0, "ignore_eos": True},
        "return_logprob": True,
        "logprob_start_len": 4,
        "stream": False,
    }
    paired = httpx.post(f"{workers.router}/generate", json=body).json()
    alone = httpx.post(f"{workers.unified}/generate", json=body).json()
    assert paired["output_ids"] == alone["output_ids"]
    # 19 prompt tokens, scored from the fifth on; the first of them has no score.
    assert len(alone["meta_info"]["input_token_logprobs"]) == 15
    for side in ("input_token_logprobs", "output_token_logprobs"):
        here, there = paired["meta_info"][side], alone["meta_info"][side]
        assert [entry[1:] for entry in here] == [entry[1:] for entry in there]
        assert [entry[0] for entry in here if entry[0] is not None] == pytest.approx(
            [entry[0] for entry in there if entry[0] is not None], abs=1e-4
        )


@pytest.mark.parametrize(
    ("choice", "status"),
    [
        ("auto", 200),
        ("required", 200),
        ({"type": "function", "function": {"name": "get_time"}}, 200),
        ({"type": "function", "function": {"name": "no_such_tool"}}, 400),
    ],
    ids=["auto", "required", "named", "not offered"],
)
async def test_tool_choice_through_the_router(workers: Workers, choice: object, status: int) -> None:
    answer = httpx.post(f"{workers.router}/v1/chat/completions", json=chat("a", tools=TOOLS, tool_choice=choice))
    assert answer.status_code == status


# orjson reads up to 1024 levels; the messages of refusals and the template go further down than that.
NESTED = "[" * 1000 + "]" * 1000
ERRORS = {
    "nested": ("/v1/chat/completions", f'{{"messages":[{{"role":{NESTED},"content":"x"}}]}}', 400, "nested too deeply"),
    "bad JSON": ("/v1/chat/completions", "{", 400, "JSON decode error"),
    "no messages": ("/v1/chat/completions", '{"model":"m"}', 400, "messages"),
    "a list": ("/v1/chat/completions", "[]", 400, "JSON object"),
    "too long": ("/v1/chat/completions", json.dumps(chat("x" * 2000)), 400, "longer than the model's context length"),
    "generate": ("/generate", "{}", 400, "Either text or input_ids"),
    "no path": ("/nope", "{}", 404, "Not Found"),
    "method": ("/health", "{}", 405, "Method Not Allowed"),
    "sleep": ("/slow_down", '{"forward_sleep_time": -1}', 400, "forward_sleep_time"),
}


@pytest.mark.parametrize(("path", "body", "status", "named"), ERRORS.values(), ids=ERRORS.keys())
async def test_errors_have_a_status_and_a_reason(
    workers: Workers, path: str, body: str, status: int, named: str
) -> None:
    answer = httpx.post(f"{workers.unified}{path}", content=body)
    assert answer.status_code == status
    assert named in answer.text


async def test_endpoints_describe_the_worker(workers: Workers, weights: Path) -> None:
    get = {path: httpx.get(f"{workers.decode}{path}") for path in ("/server_info", "/model_info", "/v1/models")}
    decode, prefill = get["/server_info"].json(), httpx.get(f"{workers.prefill}/server_info").json()
    assert (decode["disaggregation_mode"], decode["disable_radix_cache"]) == ("decode", True)
    assert (prefill["disaggregation_mode"], prefill["disable_radix_cache"]) == ("prefill", False)
    assert decode["weights_sha256"] == hashlib.sha256(weights.read_bytes()).hexdigest()
    assert get["/model_info"].json()["is_generation"] is True
    assert get["/v1/models"].json()["data"][0]["max_model_len"] == 1024
    load = httpx.get(f"{workers.decode}/v1/loads").json()["loads"][0]
    assert (load["num_running_reqs"], load["disaggregation"]["mode"]) == (0, "decode")
    assert httpx.get(f"{workers.decode}/get_load").json()[0]["num_reqs"] == 0
    flushed = httpx.post(f"{workers.unified}/flush_cache")
    assert (flushed.status_code, flushed.text[:14]) == (200, "Cache flushed.")


async def test_slow_down_slows_every_step(workers: Workers) -> None:
    slow = httpx.post(f"{workers.unified}/slow_down", json={"forward_sleep_time": 0.03})
    assert slow.status_code == 200
    started = time.monotonic()
    await contents(workers.unified, [chat("abc", max_completion_tokens=10)])
    elapsed = time.monotonic() - started
    httpx.post(f"{workers.unified}/slow_down", json={"forward_sleep_time": None})
    # one prompt step and nine decode steps, a sleep after all but the last.
    assert elapsed > 9 * 0.03


def test_sigterm_ends_a_worker_with_exit_code_0(weights: Path, tmp_path: Path) -> None:
    port = free_ports(1)[0]
    process = start_worker(configuration(weights, "unified", port), tmp_path)
    wait_until(f"http://127.0.0.1:{port}/health", process)
    with httpx.stream(
        "POST", f"http://127.0.0.1:{port}/v1/chat/completions", json=chat("a", stream=True, max_completion_tokens=900)
    ) as answer:
        next(answer.iter_bytes())
        code, stdout, stderr = stop(process)
    assert (code, stdout) == (0, "")
    assert "Traceback" not in stderr


def cannot_start(config: dict[str, Any] | str, tmp_path: Path) -> str:
    process = start_worker(config, tmp_path)
    stdout, stderr = process.communicate(timeout=START_SECONDS)
    assert (process.returncode, stdout) == (3, "")
    assert stderr.count("\n") == 1, stderr
    return stderr


BAD_CONFIGURATIONS = {
    "unknown key": ({"prot": 1}, "prot"),
    "unknown engine key": ({"engine": {"pages": 1}}, "engine.pages"),
    "port": ({"port": 70000}, "70000"),
    "prefill without bootstrap": ({"role": "prefill"}, "bootstrap_port"),
    "two roles": ({"engine": {"role": "decode"}}, "leave engine.role out"),
    "fault": ({"engine": {"fault": "gremlin"}}, "gremlin"),
    "device": ({"engine": {"device": "cuda:x"}}, "cuda:x"),
    "device that is not there": ({"engine": {"device": "cuda:99"}}, "device is cuda:99, PyTorch sees"),
    # 8e9 pages of 64 tokens, 2 layers of 32 + 16 floats each: 1.8e5 GiB and more on any machine.
    "pool": ({"engine": {"num_pages": 8_000_000_000}}, "lower num_pages"),
}


@pytest.mark.parametrize(("change", "named"), BAD_CONFIGURATIONS.values(), ids=BAD_CONFIGURATIONS.keys())
def test_a_bad_configuration_is_one_line_and_exit_3(
    weights: Path, tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    assert named in cannot_start(configuration(weights, "unified", free_ports(1)[0]) | change, tmp_path)


def test_a_port_in_use_is_one_line_and_exit_3(weights: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"127.0.0.1:{port}" in cannot_start(configuration(weights, "unified", port), tmp_path)


def test_corrupt_weights_are_one_line_and_exit_3(weights: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(weights.read_bytes()[:1000])
    broken.with_suffix(".json").write_bytes(weights.with_suffix(".json").read_bytes())
    assert str(broken) in cannot_start(configuration(broken, "unified", free_ports(1)[0]), tmp_path)


def test_configuration_that_is_no_json_is_one_line_and_exit_3(tmp_path: Path) -> None:
    assert "configuration" in cannot_start("{", tmp_path)
