"""Commands before a run: data prepare, init."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from protocol.manifest import DataSection

PANEL = "Start a run of your own"
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
    from node.manifest_file import build, render, vocab_size_of_preset

    changes = overrides or []
    vocab_size = vocab_size_of_preset(preset, changes)
    section, vocab_size = _section([*data, *(more or [])], out, vocab_size)
    manifest = build(
        preset,
        section,
        block_stages=block_stages,
        steps=steps,
        policy=policy,
        seed=seed,
        name=name,
        vocab_size=vocab_size,
        overrides=changes,
    )
    print(render(manifest), end="")
    return 0


def _section(files: list[Path], out: Path, vocab_size: int) -> tuple[DataSection, int]:
    """The data section for these files, sources absolute, and the size of the vocabulary."""
    from node.data.documents import input_of
    from node.data.prepare import PrepareOptions
    from node.data.prepare import prepare as run
    from node.demo.material import absolute

    if len(files) == 1 and files[0].name == "data.json":
        section = absolute(_loaded(files[0]), files[0].parent)
        return section, _vocab_size(section)
    with progress_bar() as progress:
        made = run(input_of(files, None, "train", "text"), out, PrepareOptions(vocab_size=vocab_size), progress)
    for note in made.notes:
        print(note, file=sys.stderr)
    return absolute(made.section, out), made.vocab_size


def _vocab_size(section: DataSection) -> int:
    """That of the tokenizer, 0 where there is none to ask."""
    from node.data.tokenizer import load_tokenizer, vocab_size_of

    sources = section.tokenizer.sources if section.tokenizer is not None else ()
    found = next((Path(source) for source in sources if Path(source).is_file()), None)
    return vocab_size_of(load_tokenizer(found)) if found is not None else 0


def _loaded(path: Path) -> DataSection:
    from pydantic import ValidationError

    from node.manifest_errors import findings_of
    from node.manifest_yaml import read_text
    from node.ports import UnusableError
    from protocol.manifest import DataSection

    try:
        return DataSection.model_validate_json(read_text(path))
    except ValidationError as error:
        lines = [f"{path}: {finding.sentence}" for finding in findings_of(error, DataSection)]
        raise UnusableError(2, "\n".join(lines)) from None


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
