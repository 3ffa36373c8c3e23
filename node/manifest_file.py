"""Manifest files: reading one with errors that name line and field, and making one from a preset.

Errors are `UnusableError(2)`; where several things are wrong, each has its line and the first stands on its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from node.manifest_errors import dotted, findings_of
from node.manifest_render import render
from node.manifest_yaml import KeyPath, parse_yaml, read_text
from node.ports import UnusableError
from protocol.manifest import DataSection, Manifest, from_mapping, slug
from protocol.presets import preset as preset_sections
from protocol.sampling import check_data, num_windows

__all__ = ["build", "load", "loads", "render", "vocab_size_of_preset"]

MIN_SWAPPED_STAGES = 4
FLAG_OF = {
    "num_block_stages": "--block-stages",
    "max_steps": "--steps",
    "recovery.policy": "--policy",
    "seed": "--seed",
    "name": "--name",
}


# ---- reading ----


def load(path: Path) -> Manifest:
    """Read and check a manifest file. Relative sources in it mean its folder (see `node.data.files`)."""
    return loads(read_text(path), str(path))


def loads(text: str, where: str) -> Manifest:
    """Read and check a manifest, as YAML or JSON; `where` names it in errors."""
    document = parse_yaml(text, where)
    if document.data is None:
        raise UnusableError(2, f"{where} is empty; `regrow init` prints a complete manifest")
    try:
        manifest = from_mapping(document.data)
        check_data(manifest)
    except ValidationError as error:
        found = findings_of(error)
        lines = [f"{where}:{document.line_of(finding.path)}: {finding.sentence}" for finding in found]
        raise UnusableError(2, "\n".join(lines)) from None
    except ValueError as error:
        raise UnusableError(2, f"{where}: {error}") from None
    return manifest


# ---- making ----


def build(
    preset: str,
    data: DataSection,
    *,
    block_stages: int | None = None,
    steps: int | None = None,
    policy: str | None = None,
    seed: int | None = None,
    name: str | None = None,
    vocab_size: int = 0,
    overrides: Sequence[str] = (),
) -> Manifest:
    """A manifest from a preset, with its data and what the options change.

    `overrides` are `dotted.key=value`, the value as in YAML; they win over everything else. `vocab_size` is the tokenizer's:
    the model's grows to it. Without a policy, fewer than 4 block stages take `checkfree`. Where nothing (or less than a sample)
    is held out, evaluation is off. Raises `UnusableError(2)`."""
    changes = parse_overrides(overrides)
    sections = _preset(preset)
    sections["data"] = data.model_dump(mode="json")
    given = {"num_block_stages": block_stages, "max_steps": steps, "recovery.policy": policy, "seed": seed}
    named = {key: value for key, value in given.items() if value is not None}
    if name is not None:
        named["name"] = slug(name)
    for key, value in {**named, **changes}.items():
        _put(sections, key, value)
    if "model.vocab_size" not in changes and isinstance(sections["model"], dict):
        sections["model"]["vocab_size"] = max(sections["model"]["vocab_size"], vocab_size)
    _fit_policy(sections, free="recovery.policy" not in {**named, **changes})
    _fit_evaluation(sections, data, free="evaluation.every_steps" not in changes)
    return _checked(sections, named, changes)


def vocab_size_of_preset(preset: str, overrides: Sequence[str] = ()) -> int:
    """How many tokens a tokenizer that is trained for this run should have."""
    value = parse_overrides(overrides).get("model.vocab_size", _preset(preset)["model"]["vocab_size"])
    if not isinstance(value, int) or value < 1:
        raise UnusableError(2, f"--set model.vocab_size={value}: should be a positive whole number")
    return value


def parse_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """`dotted.key=value` words as a mapping; of two for the same key the last one counts."""
    out = {}
    for word in overrides:
        key, equals, value = word.partition("=")
        if not equals or not all(part.isidentifier() for part in key.split(".")):
            raise UnusableError(2, f"--set {word}: give KEY=VALUE, such as --set optimizer.learning_rate=0.001")
        out[key] = parse_yaml(value, f"--set {word}").data
    return out


def _preset(name: str) -> dict[str, Any]:
    try:
        return preset_sections(name)
    except ValueError as error:
        raise UnusableError(2, f"--preset {name}: {error}") from None


def _put(sections: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    place = sections
    for part in parents:
        inner = place.get(part)
        if not isinstance(inner, dict):
            inner = place[part] = {}
        place = inner
    place[last] = value


def _fit_policy(sections: dict[str, Any], free: bool) -> None:
    stages, recovery = sections["num_block_stages"], sections["recovery"]
    if free and isinstance(stages, int) and stages < MIN_SWAPPED_STAGES and isinstance(recovery, dict):
        recovery["policy"] = "checkfree"


def _fit_evaluation(sections: dict[str, Any], data: DataSection, free: bool) -> None:
    context = sections["batch"].get("context_tokens") if isinstance(sections["batch"], dict) else None
    if not isinstance(context, int) or context < 1 or not isinstance(sections["data"], dict):
        return
    if num_windows(sum(shard.num_tokens for shard in data.validation), context) == 0:
        sections["data"]["validation"] = []
        if free:
            _put(sections, "evaluation.every_steps", 0)


def _checked(sections: dict[str, Any], named: Mapping[str, Any], changes: Mapping[str, Any]) -> Manifest:
    try:
        manifest = from_mapping(sections)
        check_data(manifest)
    except ValidationError as error:
        lines = [_origin(finding.path, named, changes) + finding.sentence for finding in findings_of(error)]
        raise UnusableError(2, "\n".join(lines)) from None
    except ValueError as error:
        raise UnusableError(2, str(error)) from None
    return manifest


def _origin(path: KeyPath, named: Mapping[str, Any], changes: Mapping[str, Any]) -> str:
    """The option that set the field, in front of what is wrong with it."""
    while path:
        key = dotted(path)
        if key in changes:
            return f"--set {key}={changes[key]}: "
        if key in named:
            return f"{FLAG_OF[key]} {named[key]}: "
        path = path[:-1]
    return ""
