"""The committed code is what proto/swarm.proto generates."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
GENERATED = ("swarm_pb2.py", "swarm_pb2.pyi", "swarm_pb2_grpc.py")


def settled(text: str) -> str:
    """Without what depends on the version of grpcio-tools: version numbers, and comments that name them."""
    kept = [line for line in text.splitlines() if not re.match(r"\s*#|.*\d+\.\d+\.\d+|\s*\d+,$|\s*'',$", line)]
    return "\n".join(kept)


def test_generated_code_is_up_to_date(tmp_path: Path) -> None:
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", "node/transport=proto", *outputs]
    subprocess.run([*command, "node/transport/swarm.proto"], cwd=ROOT, check=True, timeout=50)
    for name in GENERATED:
        fresh = (tmp_path / "node" / "transport" / name).read_text()
        committed = (ROOT / "node" / "transport" / name).read_text()
        assert settled(fresh) == settled(committed), f"{name} is older than proto/swarm.proto: make proto"


def test_generated_code_differs_when_the_source_does() -> None:
    text = (ROOT / "node" / "transport" / "swarm_pb2.py").read_text()
    assert settled(text.replace("heartbeat", "heartbeet")) != settled(text)
