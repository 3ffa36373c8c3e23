"""Dumps are safetensors files with Hugging Face names, complete or absent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from node.dump import write_dump

ROOT = Path(__file__).parents[2]
PARAMETERS = [("model.norm.weight", (3,)), ("lm_head.weight", (2, 4))]
WEIGHTS = np.arange(11, dtype="<f4")


def test_names_shapes_values_and_header(tmp_path: Path) -> None:
    path = tmp_path / "stage0.safetensors"
    write_dump(path, PARAMETERS, WEIGHTS.tobytes(), {"state_id": "abc", "stage": "0"})
    with safe_open(path, framework="numpy") as file:
        assert file.metadata() == {"state_id": "abc", "stage": "0"}
        assert sorted(file.keys()) == ["lm_head.weight", "model.norm.weight"]
        assert file.get_tensor("model.norm.weight").tolist() == [0, 1, 2]
        assert file.get_tensor("lm_head.weight").tolist() == [[3, 4, 5, 6], [7, 8, 9, 10]]
    assert list(tmp_path.iterdir()) == [path]


def test_an_earlier_dump_is_replaced_and_a_wrong_one_leaves_it(tmp_path: Path) -> None:
    path = tmp_path / "stage0.safetensors"
    write_dump(path, PARAMETERS, memoryview(WEIGHTS.tobytes()), {"state_id": "1"})
    write_dump(path, PARAMETERS, (WEIGHTS + 1).tobytes(), {"state_id": "2"})
    with pytest.raises(ValueError, match="10 weights for parameters of 11"):
        write_dump(path, PARAMETERS, WEIGHTS[:10].tobytes(), {"state_id": "3"})
    with safe_open(path, framework="numpy") as file:
        assert file.metadata() == {"state_id": "2"}
    assert list(tmp_path.iterdir()) == [path]


def test_dumping_and_token_sources_do_without_torch() -> None:
    code = "import sys, node.dump, node.stage.tokens; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=30)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        write_dump(tmp_path / "nowhere" / "x.safetensors", PARAMETERS, WEIGHTS.tobytes(), {})
