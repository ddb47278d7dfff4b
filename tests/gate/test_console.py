"""Talk without a terminal: when it speaks, and what it makes of control characters."""

from __future__ import annotations

import pytest

from pdwatch.gate.console import PlainTalk, RichTalk
from pdwatch.gate.printable import MAXIMUM_CHARACTERS, printable


def test_plain_talk_tells_the_beginning_the_end_and_at_most_a_line_in_ten_seconds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = [100.0]
    with PlainTalk(clock=lambda: now[0]) as talk:
        talk.begin("level 4")
        for second in range(1, 26):
            now[0] = 100.0 + second
            talk.advance(second, f"{second} ended")
        talk.end("25 measured")
    assert capsys.readouterr().err.splitlines() == [
        "[   0.0 s] level 4 …",
        "[  10.0 s] level 4: 10 ended",
        "[  20.0 s] level 4: 20 ended",
        "[  25.0 s] level 4: 25 measured",
    ]


@pytest.mark.parametrize("kind", [PlainTalk, RichTalk])
def test_control_characters_are_shown(
    kind: type[PlainTalk | RichTalk], capsys: pytest.CaptureFixture[str], hostile: str
) -> None:
    talk = kind()
    talk.say(f"a server says {hostile}")
    talk.begin(hostile)
    talk.end(hostile)
    error = capsys.readouterr().err
    assert "\\x1b[31m" in error
    assert not {"\x1b", "\x00", "\u202e", "\u200b"} & set(error)


def test_printable_bounds_what_it_shows() -> None:
    assert printable("東京 – [x]") == "東京 – [x]"
    assert printable("x" * (MAXIMUM_CHARACTERS + 3)) == "x" * MAXIMUM_CHARACTERS + "… (3 more characters)"
