"""The data of a new run: an existing data.json, or text that is prepared on the spot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import blake3
from pydantic import ValidationError

from node.data.documents import Input
from node.data.prepare import PrepareOptions, PrepareProgress, prepare
from node.data.remote import is_url
from node.data.tokenizer import load_tokenizer, vocab_size_of
from node.data.verified import digest_of
from node.manifest_errors import findings_of
from node.manifest_yaml import read_text
from node.ports import UnusableError
from protocol.manifest import DataSection, FileRef, slug


@dataclass(frozen=True, slots=True)
class RunData:
    """A data section whose sources are absolute, and the size of its tokenizer (0 where that is not here)."""

    section: DataSection
    vocab_size: int
    notes: tuple[str, ...] = ()


def run_data(
    files: Sequence[Path], data_dir: Path, options: PrepareOptions, progress: PrepareProgress | None = None
) -> RunData:
    """`files` are text and JSONL files, or the data.json of one or more prepared folders with the same tokenizer.

    Text is prepared into a folder of `data_dir` that is named after its contents, once. Raises `UnusableError(2)`."""
    if not files:
        raise UnusableError(2, "--data is missing: name text files, JSONL files or a data.json of `regrow data prepare`")
    described = [path for path in files if path.suffix.lower() == ".json"]
    if not described:
        return _from_text(tuple(files), data_dir, options, progress)
    if len(described) < len(files):
        raise UnusableError(2, "--data: give either text files or data.json files, not both; `regrow data prepare` takes text")
    return _joined(described)


def read_data_file(path: Path) -> RunData:
    """A data.json. Raises `UnusableError(2)`."""
    try:
        section = DataSection.model_validate_json(read_text(path))
    except ValidationError as error:
        sentences = [f"{path}: {finding.sentence}" for finding in findings_of(error, DataSection)]
        raise UnusableError(2, "\n".join(sentences)) from None
    section = _absolute(section, path.absolute().parent)
    return RunData(section, _vocab_size(section.tokenizer))


def _joined(paths: Sequence[Path]) -> RunData:
    parts = [read_data_file(path) for path in paths]
    first = parts[0]
    for path, part in zip(paths[1:], parts[1:], strict=True):
        if _tokenizer(part) != _tokenizer(first) or part.section.dtype != first.section.dtype:
            raise UnusableError(
                2,
                f"{paths[0]} and {path} were made with different tokenizers; prepare both with the same --tokenizer",
            )
    section = first.section.model_copy(
        update={
            "train": tuple(shard for part in parts for shard in part.section.train),
            "validation": tuple(shard for part in parts for shard in part.section.validation),
        }
    )
    return RunData(section, first.vocab_size)


def _tokenizer(data: RunData) -> str | None:
    return data.section.tokenizer.digest if data.section.tokenizer else None


def _from_text(files: tuple[Path, ...], data_dir: Path, options: PrepareOptions, progress: PrepareProgress | None) -> RunData:
    source = Input(files)
    source.num_bytes()
    folder = data_dir / f"{slug(files[0].stem)}-{_fingerprint(files, options)}"
    done = folder / "data.json"
    if done.is_file() and (known := _intact(done)) is not None:
        return known
    made = prepare(source, folder, options, progress)
    return RunData(_absolute(made.section, folder.absolute()), made.vocab_size, made.notes)


def _intact(done: Path) -> RunData | None:
    """What was prepared before, unless something of it is gone."""
    try:
        data = read_data_file(done)
        refs: list[FileRef] = [*data.section.train, *data.section.validation]
        return data if all(Path(ref.sources[0]).stat().st_size == ref.num_bytes for ref in refs) else None
    except (UnusableError, OSError):
        return None


def _fingerprint(files: Sequence[Path], options: PrepareOptions) -> str:
    """16 hex digits of everything that the result depends on."""
    if options.tokenizer is not None:
        files = [*files, options.tokenizer]
        options = replace(options, tokenizer=None)
    try:
        digests = [digest_of(path) for path in files]
    except OSError as error:
        raise UnusableError(2, f"{error.filename} cannot be read ({error.strerror}); check its permissions") from None
    return blake3.blake3(repr((digests, options)).encode()).hexdigest()[:16]


def _absolute(section: DataSection, folder: Path) -> DataSection:
    tokenizer = section.tokenizer
    return section.model_copy(
        update={
            "train": tuple(shard.model_copy(update=_sources(shard, folder)) for shard in section.train),
            "validation": tuple(shard.model_copy(update=_sources(shard, folder)) for shard in section.validation),
            "tokenizer": tokenizer and tokenizer.model_copy(update=_sources(tokenizer, folder)),
        }
    )


def _sources(ref: FileRef, folder: Path) -> dict[str, tuple[str, ...]]:
    return {"sources": tuple(source if is_url(source) else str(folder / source) for source in ref.sources)}


def _vocab_size(ref: FileRef | None) -> int:
    for source in ref.sources if ref else ():
        if not is_url(source) and Path(source).is_file():
            return vocab_size_of(load_tokenizer(Path(source)))
    return 0
