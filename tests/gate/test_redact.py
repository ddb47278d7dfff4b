"""No secret gets into a run folder."""

from __future__ import annotations

import pytest

from pdwatch.gate.redact import HIDDEN, redact, redact_command, redact_url


@pytest.mark.parametrize(
    "key", ["api_key", "admin_api_key", "API-KEY", "hf_token", "password", "aws_secret", "Authorization", "bearer"]
)
def test_secrets_are_hidden_wherever_they_stand(key: str) -> None:
    assert redact({"a": [{key: "x"}]}) == {"a": [{key: HIDDEN}]}


@pytest.mark.parametrize("key", ["max_total_tokens", "tokenizer_path", "token_usage", "skip_tokenizer_init", "seed"])
def test_what_only_sounds_like_a_secret_stays(key: str) -> None:
    assert redact({key: 7}) == {key: 7}


def test_an_unset_secret_stays_unset() -> None:
    assert redact({"api_key": None}) == {"api_key": None}


def test_size_and_depth_are_bounded() -> None:
    deep: object = 1
    for _ in range(100):
        deep = [deep]
    assert len(str(redact(deep))) < 60
    assert len(redact({"a": "x" * 10_000})["a"]) == 4_096
    assert len(redact(list(range(10_000)))) == 2_000


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://user:secret@host:1/x", f"http://{HIDDEN}@host:1/x"),
        ("http://host:1/x", "http://host:1/x"),
        ("mail@host", "mail@host"),
        ("http://[broken@", HIDDEN),
        ("http://host:1/x?key=secret", f"http://host:1/x?{HIDDEN}"),
        ("http://u:secret@host:1?key=secret#secret", f"http://{HIDDEN}@host:1?{HIDDEN}#{HIDDEN}"),
        ("is it there?", "is it there?"),
    ],
    ids=["password", "plain", "no-url", "broken", "query", "everything", "question"],
)
def test_urls(text: str, shown: str) -> None:
    assert redact_url(text) == shown


def test_the_command_line() -> None:
    told = redact_command(
        ["gate", "--target", "http://u:p@h:1", "--set", "targets.router=http://u:p@h:1", "--target", "http://h?k=p"]
    )
    assert "u:p" not in " ".join(told)
    assert told[-1] == f"http://h?{HIDDEN}"
