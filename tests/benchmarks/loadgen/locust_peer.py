"""The peer: Locust as its documentation suggests for streams, a FastHttpUser that reads lines and parses each at once.

python locust_peer.py URL STREAMS REQUESTS TOKENS OUT.csv
"""

from __future__ import annotations

import csv
import json
import sys
import time
from typing import Any

import gevent
from locust import FastHttpUser, constant, task
from locust.env import Environment
from locust.exception import StopUser

_, URL, STREAMS, REQUESTS, TOKENS, OUT = sys.argv
numbers = iter(range(int(REQUESTS)))
rows: list[tuple[str, float, float | None]] = []


class Reader(FastHttpUser):
    """Sends the next request as soon as its last one has ended."""

    host = URL
    wait_time = constant(0)

    @task
    def ask(self) -> None:
        number = next(numbers, None)
        if number is None:
            raise StopUser
        body = {
            "model": "truth",
            "messages": [{"role": "user", "content": "hello " * 200}],
            "max_tokens": int(TOKENS),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        first = last = None
        tokens = 0
        sent = time.monotonic()
        headers = {"X-Request-ID": f"peer-{number}"}
        with self.client.post(
            "/v1/chat/completions", json=body, headers=headers, stream=True, catch_response=True
        ) as got:
            while line := got.stream.readline(b"\n"):
                if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                    continue
                now = time.monotonic()
                event: dict[str, Any] = json.loads(line[6:])
                for choice in event["choices"]:
                    if choice["delta"].get("content"):
                        first = first or now
                        last = now
                tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
        if first is not None and last is not None:
            rows.append((f"peer-{number}", first - sent, (last - first) / (tokens - 1) if tokens > 1 else None))


environment = Environment(user_classes=[Reader])
runner: Any = environment.create_local_runner()
runner.start(int(STREAMS), spawn_rate=int(STREAMS))
runner.spawning_greenlet.join()
while runner.user_count:
    gevent.sleep(0.05)
runner.quit()
with open(OUT, "w", newline="") as file:
    csv.writer(file).writerows(rows)
