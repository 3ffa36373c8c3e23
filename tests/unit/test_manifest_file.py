"""Manifest files: rendered completely, read back exactly, and every mistake named with its line, field and remedy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from node.manifest_errors import dotted, paths_of
from node.manifest_file import build, load, loads, render, vocab_size_of_preset
from node.manifest_render import scalar
from node.ports import UnusableError
from protocol.manifest import DataSection, Manifest
from protocol.presets import PRESETS, preset
from protocol.version import PROTOCOL_VERSION


def shard(digest: str, tokens: int = 1_000_000) -> dict[str, Any]:
    return {"digest": digest * 64, "num_bytes": 2 * tokens, "num_tokens": tokens, "sources": [f"/data/{digest}: [x], #y"]}


DATA = DataSection.model_validate(
    {
        "train": [shard("0"), shard("1")],
        "validation": [shard("e")],
        "tokenizer": {"digest": "a" * 64, "num_bytes": 100, "sources": ["tokenizer.json"]},
    }
)


def tiny(**changed: Any) -> Manifest:
    return build("tiny", DATA, **changed)


def refusal(text: str) -> list[str]:
    with pytest.raises(UnusableError) as caught:
        loads(text, "RUN.yaml")
    assert caught.value.code == 2
    return str(caught.value).splitlines()


def build_refusal(**arguments: Any) -> str:
    with pytest.raises(UnusableError) as caught:
        build(**{"preset": "tiny", "data": DATA} | arguments)
    assert caught.value.code == 2
    return str(caught.value)


# ---- rendering ----


@pytest.mark.parametrize("name", PRESETS)
def test_a_rendered_manifest_reads_back_to_the_same_digest(name: str, tmp_path: Path) -> None:
    manifest = build(name, DATA)
    path = tmp_path / "run.yaml"
    path.write_text(render(manifest), encoding="utf-8")
    assert load(path) == manifest
    assert load(path).digest == manifest.digest


def test_optional_sections_read_back_too() -> None:
    manifest = build(
        "tiny",
        DATA,
        policy="none",
        overrides=[
            "model.rope_scaling={rope_type: llama3, factor: 8}",
            "blocks_per_stage=[1, 2, 4, 5]",
            "optimizer.learning_rate=1.2345678901234567e-05",
        ],
    )
    assert manifest.model.rope_scaling is not None
    assert manifest.blocks_per_stage == (1, 2, 4, 5)
    assert manifest.optimizer.learning_rate == 1.2345678901234567e-05
    assert loads(render(manifest), "x").digest == manifest.digest


def test_every_field_has_its_description_above_it() -> None:
    text = " ".join(line.strip().removeprefix("# ") for line in render(tiny()).splitlines())
    for path in paths_of(Manifest):
        model: Any = Manifest
        for part in path[:-1]:
            model = _inner(model.model_fields[part].annotation)
        description = model.model_fields[path[-1]].description
        assert description, f"{dotted(path)} has no description"
        assert description in text, dotted(path)


def _inner(annotation: Any) -> Any:
    from node.manifest_errors import section_of

    return section_of(annotation)


def test_every_field_is_there_as_a_value() -> None:
    data = yaml.safe_load(render(tiny()))
    assert data == tiny().model_dump(mode="json")
    assert list(data) == list(Manifest.model_fields)


@given(
    st.one_of(
        st.floats(allow_nan=False, allow_infinity=False),
        st.integers(),
        st.booleans(),
        st.none(),
        st.lists(st.text()).map(tuple),
    )
)
def test_scalars_survive_yaml(value: Any) -> None:
    assert yaml.safe_load(f"key: {scalar(value)}")["key"] == (list(value) if isinstance(value, tuple) else value)


# ---- reading what is wrong ----


def changed(old: str, new: str) -> str:
    text = render(tiny())
    assert text.count(old) >= 1, old
    return text.replace(old, new, 1)


def line_of(text: str, start: str) -> int:
    return next(i for i, line in enumerate(text.splitlines(), 1) if line.strip().startswith(start))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("  hidden_size: 96", "  hiden_size: 96", r"model\.hiden_size: unknown key; did you mean hidden_size\?"),
        ("seed: 0", "learning_rate: 1", r"learning_rate: unknown key; did you mean optimizer\.learning_rate\?"),
        ("seed: 0", "frobnicate: 1", r"frobnicate: unknown key; known here: name, protocol_version, seed, model,"),
        ("  hidden_size: 96", "  hidden_size: -3", r"model\.hidden_size: should be greater than 0, not -3 \(Width of the"),
        ("  hidden_size: 96", "  hidden_size: wide", r"model\.hidden_size: should be a valid integer.*, not 'wide'"),
        ("  policy: checkfree_plus", "  policy: best", r"recovery\.policy: should be 'none', .*, not 'best'"),
        ("  clip_norm: 1.0", "  clip_norm: .nan", r"optimizer\.clip_norm: should be a finite number, not nan"),
        ("name: tiny", "name: on", r"name: should be a valid string, not True \(Slug"),
        ("name: tiny", "name: A b", r"name: should match pattern .*, not 'A b' \(Slug: lower-case letters"),
        ("  global_samples: 16", "  global_samples: 15", r"batch: global_samples 15 is not a multiple of microbatch_samples 2"),
        ("  num_attention_heads: 4", "  num_attention_heads: 5", r"model: hidden_size 96 is not a multiple of"),
        ("num_block_stages: 4", "num_block_stages: 5", r"12 transformer blocks do not divide into 5 equal block stages"),
        ("num_block_stages: 4", "num_block_stages: 3", r"recovery\.policy checkfree_plus swaps stages and needs"),
        ("  policy: checkfree_plus", "  policy: checkpoint", "recovery: policy checkpoint needs checkpoint_every: a number"),
        ("  checkpoint_every: 0", "  checkpoint_every: 5", "recovery: checkpoint_every is for policy checkpoint, not "),
        ("  context_tokens: 128", "  context_tokens: 256", r"batch\.context_tokens 256 exceeds model\.max_position_embeddings"),
        (
            f"protocol_version: {PROTOCOL_VERSION}",
            "protocol_version: 99",
            rf"protocol_version 99: .* {PROTOCOL_VERSION}; install",
        ),
        (
            "  policy: checkfree_plus",
            "  policy: checkfree_plus\n  policy: none",
            r"the key policy is there twice \(first in line",
        ),
        ("  vocab_size: 2048", "  vocab_size: &v 2048\n  x: *v", r"anchors and aliases are not used here"),
        ("  train:", "  train: []\n  other:", r"data\.other: unknown key"),
        ("digest: '000", "digest: 'zzz", r"data\.train\[0\]\.digest: should match pattern"),
    ],
)
def test_a_mistake_is_named(old: str, new: str, says: str) -> None:
    text = changed(old, new)
    lines = refusal(text)
    assert re.match(r"RUN\.yaml:\d+: " + says, lines[0]), lines


@pytest.mark.parametrize(
    ("old", "new", "start"),
    [
        ("  hidden_size: 96", "  hidden_size: -3", "hidden_size: -3"),
        ("  policy: checkfree_plus", "  policy: best", "policy: best"),
        ("  global_samples: 16", "  global_samples: 15", "global_samples: 15"),
        ("num_block_stages: 4", "num_block_stages: 5", "num_block_stages: 5"),
        ("num_block_stages: 4", "num_block_stages: 3", "policy: checkfree_plus"),
        ("  context_tokens: 128", "  context_tokens: 256", "context_tokens: 256"),
        ("num_bytes: 2000000", "num_bytes: none", "num_bytes: none"),
        ("seed: 0", "seed: 0: 1", "seed: 0: 1"),
        ("seed: 0", "seed: 0\nseed: 1", "seed: 1"),
        ("  vocab_size: 2048\n", "", "model:"),
    ],
)
def test_the_line_is_the_one_to_look_at(old: str, new: str, start: str) -> None:
    text = changed(old, new)
    assert refusal(text)[0].startswith(f"RUN.yaml:{line_of(text, start)}: ")


def test_a_missing_field_says_what_it_is() -> None:
    assert re.match(
        r"RUN\.yaml:\d+: batch\.context_tokens is missing; add it: Tokens per sample",
        refusal(changed("  context_tokens: 128\n", ""))[0],
    )


def test_a_misspelt_key_comes_before_what_is_missing_for_it() -> None:
    lines = refusal(changed("  hidden_size: 96", "  hiden_size: 96"))
    assert len(lines) == 2
    assert "did you mean hidden_size?" in lines[0]
    assert "model.hidden_size is missing" in lines[1]


def test_several_mistakes_have_a_line_each() -> None:
    text = changed("  hidden_size: 96", "  hidden_size: -1").replace("max_steps: 200", "max_steps: 0")
    lines = refusal(text)
    assert [line.split(": ")[1] for line in lines] == ["model.hidden_size", "max_steps"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", r"RUN\.yaml is empty; `regrow init` prints"),
        ("# nothing\n", r"RUN\.yaml is empty"),
        ("just words", r"RUN\.yaml:1: the file should hold keys and values, not 'just words'"),
        ("- 1\n- 2\n", r"RUN\.yaml:1: the file should hold keys and values, not \[1, 2\]"),
        ("name: [a", r"RUN\.yaml:1: not valid YAML: expected ',' or '\]'"),
        ("name: x\n\tseed: 1", r"RUN\.yaml:2: not valid YAML: found character '\\t'"),
        ("name: x\n---\nname: y\n", r"RUN\.yaml:2: not valid YAML: but found another document"),
        ("name: !!python/name:os.system x", r"RUN\.yaml:1: not valid YAML: could not determine a constructor"),
        ("seed: 2026-99-99", r"RUN\.yaml:1: '2026-99-99': month must be in 1\.\.12"),
        ("[a]: 1", r"RUN\.yaml:1: a key must be a word"),
        ("? {a: 1}\n: 1", r"RUN\.yaml:1: a key must be a word"),
        ("a: \x01", r"RUN\.yaml: not valid YAML: .*special characters are not allowed"),
        ("[" * 5000, r"RUN\.yaml: nested too deeply"),
        ("model: 5", r"RUN\.yaml:1: model should hold keys and values, not 5"),
    ],
)
def test_what_is_no_manifest_at_all(text: str, says: str) -> None:
    assert re.match(says, refusal(text)[0]), refusal(text)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: None, "there is no such file"),
        (lambda path: path.mkdir(), "is a directory; name the file in it"),
        (lambda path: path.write_bytes(b"name: \xff"), "byte 6 is not UTF-8 text; is this the right file"),
        (lambda path: path.symlink_to(path), "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path: Path, make: Any, says: str) -> None:
    path = tmp_path / "run.yaml"
    make(path)
    with pytest.raises(UnusableError, match=re.escape(f"{path}") + ".*" + says) as caught:
        load(path)
    assert caught.value.code == 2


def test_a_byte_order_mark_and_crlf_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + render(tiny()).replace("\n", "\r\n").encode())
    assert load(path) == tiny()


def test_canonical_json_is_read_too() -> None:
    assert loads(tiny().canonical().decode(), "x") == tiny()


def test_data_shorter_than_a_sample_is_refused() -> None:
    text = render(tiny()).replace("num_bytes: 2000000", "num_bytes: 20").replace("num_tokens: 1000000", "num_tokens: 10")
    assert "data.train holds 20 tokens, fewer than the 129 of one sample" in refusal(text)[0]


# ---- making ----


def test_options_change_the_preset() -> None:
    manifest = tiny(
        block_stages=6,
        steps=7,
        policy="checkfree",
        seed=5,
        name="My Run!",
        overrides=["optimizer.learning_rate=6e-4", "timing.heartbeat_s=0.5", "local=false"],
    )
    assert (manifest.num_block_stages, manifest.max_steps, manifest.seed, manifest.name) == (6, 7, 5, "my-run")
    assert manifest.recovery.policy == "checkfree"
    assert manifest.recovery.rebuild_grace_s == preset("tiny")["recovery"]["rebuild_grace_s"]
    assert (manifest.optimizer.learning_rate, manifest.timing.heartbeat_s, manifest.local) == (6e-4, 0.5, False)


@pytest.mark.parametrize(("stages", "policy"), [(1, "checkfree"), (2, "checkfree"), (3, "checkfree"), (4, "checkfree_plus")])
def test_few_stages_take_checkfree(stages: int, policy: str) -> None:
    assert tiny(block_stages=stages).recovery.policy == policy
    assert tiny(overrides=[f"num_block_stages={stages}"]).recovery.policy == policy
    assert tiny(block_stages=stages, policy="none").recovery.policy == "none"


def test_checkfree_keeps_no_copies_of_stage_0_unless_it_is_told_to() -> None:
    assert tiny(block_stages=3).recovery.embedding_copies == 0
    assert tiny(block_stages=4, policy="checkfree").recovery.embedding_copies == 0
    assert tiny(block_stages=4).recovery.embedding_copies == 2
    assert tiny(block_stages=3, overrides=["recovery.embedding_copies=1"]).recovery.embedding_copies == 1


def test_the_vocabulary_grows_to_the_tokenizers() -> None:
    assert tiny().model.vocab_size == 2048
    assert tiny(vocab_size=1000).model.vocab_size == 2048
    assert tiny(vocab_size=8192).model.vocab_size == 8192
    assert tiny(vocab_size=8192, overrides=["model.vocab_size=3000"]).model.vocab_size == 3000
    assert vocab_size_of_preset("124m") == 32000
    assert vocab_size_of_preset("tiny", ["model.vocab_size=512"]) == 512


def test_without_held_out_data_there_is_no_evaluation() -> None:
    for validation in ([], [shard("e", 100)]):
        data = DataSection.model_validate(DATA.model_dump() | {"validation": validation})
        manifest = build("tiny", data)
        assert (manifest.evaluation.every_steps, manifest.data.validation) == (0, ())
        assert "evaluation.every_steps is 10 but data.validation is empty" in build_refusal(
            data=data, overrides=["evaluation.every_steps=10"]
        )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"preset": "7b"}, r"--preset 7b: there is no preset '7b'; there are tiny, 124m"),
        ({"block_stages": 5}, r"--block-stages 5: 12 transformer blocks do not divide into 5"),
        ({"block_stages": 0}, r"--block-stages 0: num_block_stages: should be greater than or equal to 1"),
        ({"block_stages": 3, "policy": "checkfree_plus"}, r"--policy checkfree_plus: recovery\.policy checkfree_plus swaps"),
        ({"policy": "best"}, r"--policy best: recovery\.policy: should be 'none'"),
        ({"steps": 0}, r"--steps 0: max_steps: should be greater than 0, not 0"),
        ({"seed": -1}, r"--seed -1: seed: should be greater than or equal to 0"),
        ({"overrides": ["model.hidden=3"]}, r"--set model\.hidden=3: model\.hidden: unknown key; did you mean hidden_size\?"),
        ({"overrides": ["modle.hidden_size=3"]}, r"modle: unknown key; did you mean model\?"),
        ({"overrides": ["model.hidden_size=x"]}, r"--set model\.hidden_size=x: model\.hidden_size: should be a valid int"),
        ({"overrides": ["model=3"]}, r"--set model=3: model should hold keys and values, not 3"),
        ({"overrides": ["batch=null"]}, r"--set batch=None: batch should hold keys"),
        ({"overrides": ["seed"]}, r"--set seed: give KEY=VALUE"),
        ({"overrides": ["=3"]}, r"--set =3: give KEY=VALUE"),
        ({"overrides": ["seed=[1"]}, r"--set seed=\[1:1: not valid YAML"),
        ({"policy": "none", "overrides": ["blocks_per_stage=[1,2]"]}, r"--set blocks_per_stage=\[1, 2\]: blocks_per_stage"),
    ],
)
def test_options_that_do_not_fit(arguments: dict[str, Any], says: str) -> None:
    assert re.match(says, build_refusal(**arguments)), build_refusal(**arguments)


def test_an_uneven_split_is_possible_without_averaging() -> None:
    manifest = tiny(block_stages=5, policy="none", overrides=["blocks_per_stage=[3,3,2,2,2]"])
    assert [len(manifest.blocks_of(stage)) for stage in range(1, 6)] == [3, 3, 2, 2, 2]
