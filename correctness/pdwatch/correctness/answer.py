"""An answer taken apart: its text, its form, its tokens, and what the task wants instead."""

from __future__ import annotations

from dataclasses import dataclass

from pdwatch.correctness.difference import Difference, answer_text, differ
from pdwatch.correctness.outcome import Finding
from pdwatch.correctness.planted import check_planted, expected_answer
from pdwatch.correctness.structure import examine
from pdwatch.correctness.tokens import Recovery, Tokenizer, recover
from pdwatch.correctness.wire import check_lost_bytes, check_lost_tokens, check_prompt_count
from pdwatch.loadgen import Assembled, Task


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer. `prompt_ids` is None when `unscorable` says why the reference cannot be asked about it;
    `expected_text` is None when the task does not determine its answer."""

    text: str
    recovery: Recovery
    expected_text: str | None
    expected_ids: tuple[int, ...] | None
    prompt_ids: tuple[int, ...] | None
    unscorable: str | None

    @property
    def difference(self) -> Difference | None:
        """Where the text differs from the expected one; None when it does not, or nothing is expected."""
        return None if self.expected_text is None else differ(self.expected_text, self.text)


def take_apart(
    task: Task, assembled: Assembled, prompt_text: str, tokenizer: Tokenizer | None
) -> tuple[Answer, list[Finding]]:
    """The answer with what the wire's counts, its structure and its planted values show.

    `prompt_text` is all text of the request. Without a tokenizer the counts stay unchecked.
    """
    content = assembled.content or ""
    calls = tuple((call.name, call.arguments_text) for call in assembled.tool_calls)
    structure = examine(content, calls, task.tools, prompt_text)
    form = [*structure.findings, *check_planted(task, content, structure.calls)]
    text, expected = answer_text(content, calls), expected_answer(task)
    expected_text = None if expected is None else answer_text(*expected)
    if tokenizer is None:
        reason = "no tokenizer was given"
        return Answer(text, Recovery((), False, reason), expected_text, None, None, reason), form

    prompt_ids, unscorable, counts = _prompt(task, assembled, tokenizer)
    recovery = recover(tokenizer, content, calls, assembled.usage_count("completion_tokens"), assembled.finish_reason)
    expected_ids = None if expected is None else tokenizer.answer_ids(expected[0] or None, expected[1])
    counts.append(check_lost_tokens(recovery))
    if expected_text is not None and expected_ids is not None and not recovery.lost_tokens:
        counts.append(check_lost_bytes(assembled, expected_text, text, len(expected_ids)))
    answer = Answer(
        text,
        recovery,
        expected_text,
        None if expected_ids is None else tuple(expected_ids),
        prompt_ids,
        unscorable,
    )
    return answer, [*(finding for finding in counts if finding is not None), *form]


def _prompt(
    task: Task, assembled: Assembled, tokenizer: Tokenizer
) -> tuple[tuple[int, ...] | None, str | None, list[Finding | None]]:
    """Prompt ids, or why the reference cannot be asked; and what the server's count of them shows."""
    try:
        ids = tuple(tokenizer.prompt_ids(task.messages, task.tools or None))
    except ValueError as error:
        return None, f"the request has no prompt form here: {error}", []
    drift = check_prompt_count(assembled, len(ids))
    return (ids, None, []) if drift is None else (None, drift.detail, [drift])
