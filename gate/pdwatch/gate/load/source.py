"""A file that says where a load's requests come from: `--source`."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any, Final

from pdwatch.gate.errors import OptionError

# fields of a source that name files: relative ones are of the folder that the source's file is in.
_PATHS: Final = ("path", "folder")


def read_source(file: Path) -> dict[str, Any]:
    """The plan's `source`, and its `workload` where the file has a table of that name; the plan checks their fields.

    Raises OptionError.
    """
    try:
        text = file.read_text(encoding="utf-8")
        found = json.loads(text) if file.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise OptionError(f"--source `{file}` cannot be read ({error.strerror}): give the path of a file") from error
    except ValueError as error:
        form = "JSON" if file.suffix == ".json" else "TOML"
        raise OptionError(f"--source `{file}` is no {form}: {error}") from error
    if not isinstance(found, dict) or "kind" not in found:
        raise OptionError(f'--source `{file}` has no `kind`: say which source it is, as in kind = "tool_calls"')
    source = dict(found)
    workload = source.pop("workload", None)
    for name in _PATHS:
        if isinstance(source.get(name), str):
            source[name] = str(file.parent.absolute() / source[name])
    return {"source": source} if workload is None else {"source": source, "workload": workload}


def source_words(source: Any) -> str:
    """What a plan's source makes, in words: its kind and whatever differs from that kind as it usually is."""
    changed = source.model_dump(mode="json", exclude_defaults=True, exclude={"kind"})
    told = ", ".join(f"{name} {_brief(value)}" for name, value in changed.items())
    return f"{source.kind}{f': {told}' if told else ''}"


def _brief(value: object) -> str:
    return json.dumps(value, ensure_ascii=False).replace('"', "")
