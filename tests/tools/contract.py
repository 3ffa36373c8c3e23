"""docs/contract.schema.json as a check for tests."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema

DOCS = Path(__file__).parents[2] / "docs"


@cache
def schema() -> dict[str, Any]:
    """The whole schema."""
    loaded: dict[str, Any] = json.loads((DOCS / "contract.schema.json").read_text())
    return loaded


@cache
def _validator(definition: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator({**schema(), "$ref": f"#/$defs/{definition}"})


def violations(definition: str, value: Any) -> list[str]:
    """What is wrong with `value`, one sentence each. Definitions: ready, status, demo, event."""
    found = _validator(definition).iter_errors(value)
    return [f"{definition} {'/'.join(map(str, error.absolute_path))}: {error.message}" for error in found]
