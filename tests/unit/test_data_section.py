"""The data of a new run: text prepared once, prepared folders joined, other tokenizers refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from node.data.documents import Input
from node.data.files import BlobFiles
from node.data.prepare import Prepared, PrepareOptions, prepare
from node.data.section import read_data_file, run_data
from node.data.store import open_token_store
from node.manifest_file import build, loads, render
from node.ports import UnusableError

SMALL = PrepareOptions(vocab_size=300)


def text_file(path: Path, salt: str = "") -> Path:
    path.write_text("".join(f"{salt} line {i} of plain words in the file\n" for i in range(800)))
    return path


def folder(root: Path, name: str, options: PrepareOptions = SMALL) -> Prepared:
    return prepare(Input((text_file(root / f"{name}.txt", name),)), root / name, options)


def refusal(files: list[Path], data_dir: Path) -> str:
    with pytest.raises(UnusableError) as caught:
        run_data(files, data_dir, SMALL)
    assert caught.value.code == 2
    return str(caught.value)


def test_text_becomes_a_run(tmp_path: Path) -> None:
    data = run_data([text_file(tmp_path / "a.txt")], tmp_path / "data", SMALL)
    assert data.vocab_size == 300
    manifest = build("tiny", data.section, vocab_size=data.vocab_size)
    again = loads(render(manifest), "x")
    store = open_token_store(again, BlobFiles(tmp_path / "cache", (Path("/"),)))
    assert store.microbatch(1, 0).shape == (2, 129)
    assert store.validation(0).shape == (2, 129)
    assert BlobFiles(tmp_path / "cache").missing(again) == []


def test_text_is_prepared_once_and_again_when_something_changed(tmp_path: Path) -> None:
    path = text_file(tmp_path / "a.txt")
    calls: list[Any] = []

    def run(options: PrepareOptions = SMALL) -> Path:
        data = run_data([path], tmp_path / "data", options, lambda *report: calls.append(report))
        return Path(data.section.train[0].sources[0])

    first = run()
    assert calls
    calls.clear()
    assert run() == first
    assert calls == []
    first.unlink()
    assert run() == first
    assert calls
    assert run(PrepareOptions(vocab_size=310)).parent != first.parent
    text_file(path, "other")
    assert run().parent != first.parent
    assert len(list((tmp_path / "data").iterdir())) == 3


def test_a_prepared_folder_is_used_wherever_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = folder(tmp_path, "a")
    monkeypatch.chdir(tmp_path)
    data = run_data([Path("a/data.json")], tmp_path / "unused", SMALL)
    assert data.section.train[0].sources == (str(tmp_path / "a" / made.section.train[0].sources[0]),)
    assert data.vocab_size == made.vocab_size
    assert not (tmp_path / "unused").exists()


def test_urls_stay_as_they_are(tmp_path: Path) -> None:
    made = folder(tmp_path, "a")
    section = json.loads(made.data_file.read_text())
    section["train"][0]["sources"].append("https://example.org/x")
    made.data_file.write_text(json.dumps(section))
    assert read_data_file(made.data_file).section.train[0].sources[1] == "https://example.org/x"


def test_folders_with_one_tokenizer_are_joined(tmp_path: Path) -> None:
    a = folder(tmp_path, "a")
    b = folder(tmp_path, "b", PrepareOptions(tokenizer=a.folder / "tokenizer.json"))
    section = run_data([a.data_file, b.data_file], tmp_path / "unused", SMALL).section
    assert [s.digest for s in section.train] == [s.digest for s in (*a.section.train, *b.section.train)]
    assert len(section.validation) == 2


def test_folders_with_two_tokenizers_are_refused(tmp_path: Path) -> None:
    a, b = folder(tmp_path, "a"), folder(tmp_path, "b", PrepareOptions(vocab_size=310))
    says = refusal([a.data_file, b.data_file], tmp_path)
    assert (
        says == f"{a.data_file} and {b.data_file} were made with different tokenizers; prepare both with the same --tokenizer"
    )


def test_what_cannot_be_data_is_refused(tmp_path: Path) -> None:
    a = folder(tmp_path, "a")
    assert "--data is missing" in refusal([], tmp_path)
    assert "either text files or data.json files" in refusal([a.data_file, text_file(tmp_path / "t.txt")], tmp_path)
    assert "gone.json: there is no such file" in refusal([tmp_path / "gone.json"], tmp_path)
    assert "gone.txt: there is no such file" in refusal([tmp_path / "gone.txt"], tmp_path)
    (tmp_path / "empty.txt").touch()
    assert "empty.txt is empty" in refusal([tmp_path / "empty.txt"], tmp_path)
    (tmp_path / "bad.json").write_text('{"train": [{"digst": 1}]}')
    lines = refusal([tmp_path / "bad.json"], tmp_path).splitlines()
    assert lines[0] == f"{tmp_path}/bad.json: train[0].digst: unknown key; did you mean digest?"
    (tmp_path / "bad.json").write_text("{")
    assert "bad.json: " in refusal([tmp_path / "bad.json"], tmp_path)


def test_a_vocabulary_smaller_than_the_tokenizers_is_refused_at_the_start(tmp_path: Path) -> None:
    data = run_data([text_file(tmp_path / "a.txt")], tmp_path / "data", SMALL)
    largest = max(int(np.fromfile(s.sources[0], "<u2").max()) for s in data.section.train)
    manifest = build("tiny", data.section, overrides=[f"model.vocab_size={largest}"])
    with pytest.raises(UnusableError, match=rf"has id {largest}, but model\.vocab_size is {largest};"):
        open_token_store(manifest, BlobFiles(tmp_path / "cache"))
