"""Commands before a run: data prepare, init."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

PANEL = "Start a run of your own"
NO_OWNER = (
    "note: the sources of the token shards are paths of this machine: the others will get them from the node that starts the"
    " run, and from each other; URLs under data.train[].sources make them independent of it"
)
ProgressCall = Callable[[str, int, int], None]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    data = typer.Typer(no_args_is_help=True, help="Turn text into token shards.")
    data.command("prepare")(prepare)
    app.add_typer(data, name="data", rich_help_panel=PANEL)
    app.command(rich_help_panel=PANEL)(init)


def prepare(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the shards, made if need be.")],
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="FILE...", help="Text or JSONL files.", show_default=False)
    ] = None,
    dataset: Annotated[
        str | None, typer.Option("--dataset", metavar="NAME[:CONFIG]", help="Dataset of the Hugging Face hub.")
    ] = None,
    split: Annotated[str, typer.Option("--split", help="Its split.")] = "train",
    field: Annotated[str, typer.Option("--field", help="Field or column with the text.")] = "text",
    vocab_size: Annotated[int, typer.Option("--vocab-size", min=257, help="Tokens of the BPE to train.")] = 8192,
    tokenizer: Annotated[
        Path | None, typer.Option("--tokenizer", metavar="FILE", help="Use this tokenizer.json instead.")
    ] = None,
    separator: Annotated[str | None, typer.Option("--separator", help="Token between documents.")] = None,
    validation: Annotated[float, typer.Option("--validation", min=0, max=0.99, help="Share of the documents held out.")] = 0.02,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave bad places out and count them.")] = False,
) -> int:
    """Make token shards, a tokenizer and data.json (the data section of a manifest) from text.

    Example: **regrow data prepare book.txt more.jsonl --out data**
    """
    from node.data.documents import input_of
    from node.data.prepare import PrepareOptions
    from node.data.prepare import prepare as run

    source = input_of(files or (), dataset, split, field)
    options = PrepareOptions(
        vocab_size=vocab_size,
        tokenizer=tokenizer,
        separator=separator,
        validation_fraction=validation,
        skip_bad=skip_bad,
    )
    with progress_bar() as progress:
        made = run(source, out, options, progress)
    for note in made.notes:
        print(note, file=sys.stderr)
    print(
        f"{made.num_train_tokens:,} tokens for training, {made.num_validation_tokens:,} held out, "
        f"vocabulary {made.vocab_size:,}: {made.data_file}",
        file=sys.stderr,
    )
    print(made.data_file)
    return 0


def init(
    data: Annotated[
        list[Path],
        typer.Option("--data", metavar="FILE...", help="The data.json of `data prepare`, or text to prepare now."),
    ],
    more: Annotated[list[Path] | None, typer.Argument(metavar="[FILE...]", hidden=True)] = None,
    preset: Annotated[str, typer.Option("--preset", help="tiny, 124m, 500m or 1.5b.")] = "tiny",
    block_stages: Annotated[int | None, typer.Option("--block-stages", help="Stages that hold transformer blocks.")] = None,
    steps: Annotated[int | None, typer.Option("--steps", help="Optimizer steps.")] = None,
    policy: Annotated[str | None, typer.Option("--policy", help="Recovery policy.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of weights and data order.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the run.")] = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where prepared text goes.")] = Path("data"),
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any field, such as optimizer.clip_norm=0.5; repeatable."),
    ] = None,
) -> int:
    """Print a complete, commented manifest: everything that the nodes of a run agree on.

    Example: **regrow init --preset tiny --data book.txt > run.yaml**
    """
    from node.data.prepare import PrepareOptions
    from node.data.remote import only_by_path
    from node.data.section import run_data
    from node.manifest_file import build, render, vocab_size_of_preset

    changes = overrides or []
    options = PrepareOptions(vocab_size=vocab_size_of_preset(preset, changes))
    with progress_bar() as progress:
        made = run_data([*data, *(more or [])], out, options, progress)
    for note in made.notes:
        print(note, file=sys.stderr)
    manifest = build(
        preset,
        made.section,
        block_stages=block_stages,
        steps=steps,
        policy=policy,
        seed=seed,
        name=name,
        vocab_size=made.vocab_size,
        overrides=changes,
    )
    if not manifest.local and only_by_path(manifest.data):
        print(NO_OWNER, file=sys.stderr)
    print(render(manifest), end="")
    return 0


@contextmanager
def progress_bar() -> Iterator[ProgressCall]:
    """A bar on stderr, where it is a terminal: call it with (phase, bytes done, bytes in all or 0)."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description:10}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        tasks = {}

        def show(phase: str, done: int, total: int) -> None:
            if phase not in tasks:
                tasks[phase] = bar.add_task(phase, total=total or None)
            bar.update(tasks[phase], completed=done)

        yield show
