"""JSON Schema 2020-12 validation of arguments, with validators kept per schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from itertools import islice
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from referencing.exceptions import Unresolvable
from referencing.jsonschema import EMPTY_REGISTRY

from pdwatch.correctness.excerpt import excerpt

MAXIMUM_VIOLATIONS = 5


def violations(schema: Mapping[str, Any], instance: Any) -> tuple[str, ...]:
    """What in `instance` breaks `schema`, at most five, each as `path: message`; empty when it conforms.

    A schema that is not itself valid, or refers to what is not in it, yields no violations: an offered tool's faulty
    schema is not the engine's fault, and `schema_defect` tells of the first kind.
    """
    validator = _validator(_canonical(schema))
    if validator is None:
        return ()
    try:
        errors = list(islice(validator.iter_errors(instance), MAXIMUM_VIOLATIONS))
    except (Unresolvable, RecursionError):
        return ()
    return tuple(f"{excerpt(error.json_path, 60)}: {excerpt(error.message)}" for error in errors)


def schema_defect(schema: Mapping[str, Any]) -> str | None:
    """Why `schema` itself is not valid JSON Schema 2020-12; None when it is."""
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        return f"{error.json_path}: {excerpt(error.message)}"
    return None


def _canonical(schema: Mapping[str, Any]) -> str:
    return json.dumps(schema, sort_keys=True, ensure_ascii=True)


@lru_cache(maxsize=1024)
def _validator(canonical: str) -> Draft202012Validator | None:
    schema = json.loads(canonical)
    if schema_defect(schema) is not None:
        return None
    # with a registry given, a reference to another document is not fetched.
    return Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER, registry=EMPTY_REGISTRY)
