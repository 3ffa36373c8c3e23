"""What `make bench-recovery` measures: which stage is lost, how large it is, over which links it comes back, and to whom."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.tools.material import write_manifest

HEARTBEAT_S = 1.0
LAPSE_HEARTBEATS = 3
COLD_S = 6.0
SMALL: dict[str, Any] = {"model__hidden_size": 64, "model__intermediate_size": 128}
LARGE: dict[str, Any] = {
    "model__hidden_size": 1024,
    "model__intermediate_size": 2816,
    "model__num_attention_heads": 16,
    "model__num_key_value_heads": 16,
}
"""25.7 million parameters in two layers: 103 MB."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One loss. Without `on_wan` everything is on loopback; the newcomer is there already, or starts `newcomer_after_s`
    after the kill."""

    name: str
    lost: int
    on_wan: bool = True
    is_large: bool = True
    num_block_stages: int = 3
    policy: str = "checkfree"
    newcomer_after_s: float | None = None

    @property
    def story(self) -> str:
        """For people."""
        size = "about 100 MB" if self.is_large else "tiny"
        link = "emulated WAN" if self.on_wan else "loopback"
        newcomer = "standing by" if self.newcomer_after_s is None else f"started {self.newcomer_after_s:.0f} s after the kill"
        return f"stage {self.lost} of {self.num_block_stages} block stages, {size}, {link}, newcomer {newcomer}"

    def manifest(self, folder: Path) -> Path:
        """One microbatch a step: so no living stage has room for the newcomer, and it stands by."""
        size = LARGE if self.is_large else SMALL
        return write_manifest(
            folder,
            **size,
            name=f"recovery-{self.name}",
            model__num_hidden_layers=2 * self.num_block_stages,
            num_block_stages=self.num_block_stages,
            batch={"microbatch_samples": 1, "global_samples": 1, "context_tokens": 32},
            max_steps=1_000_000,
            recovery={"policy": self.policy, "rebuild_grace_s": 0.0, "newcomer_wait_s": 60.0},
            timing={"heartbeat_s": HEARTBEAT_S, "lapse_heartbeats": LAPSE_HEARTBEATS, "linger_s": 0.5},
            evaluation__every_steps=0,
            local=not self.on_wan,
        )


THE_ONE_THAT_COUNTS = "interior"
CELLS = (
    Cell(THE_ONE_THAT_COUNTS, lost=2),
    Cell("tiny-loopback", lost=2, is_large=False, on_wan=False),
    Cell("loopback", lost=2, on_wan=False),
    Cell("s1", lost=1),
    Cell("stage0", lost=0, num_block_stages=4, policy="checkfree_plus"),
    Cell("cold", lost=2, newcomer_after_s=COLD_S),
)
