"""Checks a value against the parts of JSON Schema that `schemas` uses; other keywords raise an error."""

from __future__ import annotations

import re
from typing import Any

_KINDS: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "number": (int, float),
    "integer": int,
    "null": type(None),
}
_KNOWN = {
    *("type", "properties", "required", "additionalProperties", "items", "anyOf", "pattern", "enum"),
    *("maxLength", "minLength", "maxItems", "maxProperties", "patternProperties", "minimum", "maximum"),
}


def problems(value: Any, schema: dict[str, Any], at: str = "") -> list[str]:
    """Return the parts of a value that a schema does not allow, each with its location."""
    assert set(schema) <= _KNOWN, f"this check does not know {set(schema) - _KNOWN}"
    if "anyOf" in schema:
        tried = [problems(value, choice, at) for choice in schema["anyOf"]]
        found = [] if any(not each for each in tried) else [f"{at}: none of the choices: {tried}"]
    else:
        found = []
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_is_a(value, kind) for kind in kinds):
        return [*found, f"{at}: {value!r} is no {kinds}"]
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{at}: {value!r} is none of {schema['enum']}")
    found += [
        f"{at}: {value!r}, {name} {schema[name]}"
        for name, is_kept in (
            ("pattern", lambda limit: not isinstance(value, str) or re.search(limit, value)),
            ("minLength", lambda limit: len(value) >= limit),
            ("maxLength", lambda limit: len(value) <= limit),
            ("maxItems", lambda limit: len(value) <= limit),
            ("maxProperties", lambda limit: len(value) <= limit),
            ("minimum", lambda limit: value >= limit),
            ("maximum", lambda limit: value <= limit),
        )
        if name in schema and not is_kept(schema[name])
    ]
    if isinstance(value, dict):
        found += _problems_of_object(value, schema, at)
    if isinstance(value, list) and "items" in schema:
        found += [
            each
            for index, item in enumerate(value)
            for each in problems(item, schema["items"], f"{at}[{index}]")
        ]
    return found


def _problems_of_object(value: dict[str, Any], schema: dict[str, Any], at: str) -> list[str]:
    found = [f"{at}.{name} is missing" for name in schema.get("required", []) if name not in value]
    known = schema.get("properties", {})
    more = schema.get("additionalProperties", True)
    for name, entry in value.items():
        place = f"{at}.{name}"
        by_pattern = [
            rule for pattern, rule in schema.get("patternProperties", {}).items() if re.search(pattern, name)
        ]
        rules = ([known[name]] if name in known else []) + by_pattern
        if not rules:
            if more is False:
                found.append(f"{place}: no field of this name")
            elif isinstance(more, dict):
                rules = [more]
        for rule in rules:
            found += problems(entry, rule, place)
    return found


def _is_a(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _KINDS[kind])
