"""The plain loop that the swarm is measured against: the whole model in one process, torch.optim.AdamW (fused), same data.

`python -m tests.bench.plain MANIFEST.json FOLDER THREADS` prints {"losses", "step_s"} as its last line.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

from node.data.files import BlobFiles
from node.data.store import open_token_store
from node.stage.init import initialise
from node.stage.model import BlockStage, EmbeddingStage, skeleton
from protocol.manifest import Manifest, from_mapping


class Plain:
    """One optimizer step at a time, gradients accumulated over the manifest's microbatches."""

    def __init__(self, manifest: Manifest, folder: Path) -> None:
        self.manifest = manifest
        self.tokens = open_token_store(manifest, BlobFiles(folder))
        self.stages = [self._stage(stage) for stage in range(manifest.num_stages)]
        o = manifest.optimizer
        parameters = [p for stage in self.stages for p in stage.parameters()]
        self.optimizer = torch.optim.AdamW(
            parameters, lr=o.learning_rate, betas=(o.beta1, o.beta2), eps=o.eps, weight_decay=o.weight_decay, fused=True
        )
        self.parameters = parameters

    def _stage(self, stage: int) -> BlockStage | EmbeddingStage:
        module = skeleton(self.manifest, stage).to_empty(device="cpu")
        module.place(torch.device("cpu"))
        shapes = [(name, tuple(p.shape)) for name, p in module.named_parameters()]
        flat = torch.empty(sum(p.numel() for p in module.parameters()))
        initialise(self.manifest, shapes, flat)
        with torch.no_grad():
            for p, values in zip(module.parameters(), flat.split([p.numel() for p in module.parameters()]), strict=True):
                p.copy_(values.view_as(p))
        return module

    def step(self, step: int) -> float:
        """Mean token loss of the step."""
        batch, total = self.manifest.batch, 0.0
        embedding = self.stages[0]
        assert isinstance(embedding, EmbeddingStage)
        for microbatch in range(batch.num_microbatches):
            tokens = torch.from_numpy(self.tokens.microbatch(step, microbatch))
            hidden = embedding.embed(tokens[:, :-1])
            for stage in self.stages[1:]:
                assert isinstance(stage, BlockStage)
                hidden = stage(hidden)
            loss = embedding.loss(hidden.flatten(0, 1), tokens[:, 1:].flatten())
            (loss / batch.tokens_per_step).backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(self.parameters, self.manifest.optimizer.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total / batch.tokens_per_step


def main() -> None:
    """See the module."""
    manifest = from_mapping(json.loads(Path(sys.argv[1]).read_text()))
    torch.set_num_threads(int(sys.argv[3]))
    plain = Plain(manifest, Path(sys.argv[2]))
    losses, times = [], []
    for step in range(1, manifest.last_step + 1):
        began = time.monotonic()
        losses.append(plain.step(step))
        times.append(time.monotonic() - began)
    print(json.dumps({"losses": losses, "step_s": times}))


if __name__ == "__main__":
    main()
