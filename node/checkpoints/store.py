"""The store of a run's saved stages: save one, look what is there, read one back, remove what is not needed any more.

A file counts as whole if its header is undamaged, names what the file is called, and the size is the one that follows from it.
The data are compared with their digest when they are read back. Calls block, on a disk or a network: they belong in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO

from blake3 import blake3

from node.checkpoints.form import LENGTH_BYTES, Saved, head_of, header_bytes, parse_name, read_header
from node.checkpoints.places import Place, PlaceError

CHUNK_BYTES = 4 << 20
KEPT_SETS = 2
"""Complete sets of stages that are kept: the newest, and the one before in case it cannot be read back."""


class DamagedError(Exception):
    """A saved stage is not what was saved; the sentence says what is wrong with it."""


class GivenUpError(Exception):
    """Whoever asked needs it no more."""


@dataclass(slots=True)
class CheckpointStore:
    """See the module. All calls may raise `PlaceError`."""

    place: Place
    run_id: str
    chunk_bytes: int = CHUNK_BYTES
    _known: dict[tuple[str, int], Saved] = field(default_factory=dict)
    """Headers that were read already; files never change."""

    def save(
        self,
        saved: Saved,
        parameters: Sequence[tuple[str, tuple[int, ...]]],
        state: memoryview,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> int:
        """Write the stage's state (weights and moments behind one another); returns the file's size. `GivenUpError` once it is
        not wanted any more: nothing is left then."""
        data = state.cast("B")
        assert saved.run_id == self.run_id, "each run has a place of its own"
        assert len(data) == saved.data_bytes, f"{len(data)} bytes of state for {saved}"

        def parts() -> Iterator[bytes | memoryview]:
            yield head_of(saved, parameters)
            for at in range(0, len(data), self.chunk_bytes):
                if not is_wanted():
                    raise GivenUpError
                yield data[at : at + self.chunk_bytes]

        return self.place.write(saved.name, parts())

    def survey(self) -> list[Saved]:
        """Every whole file of the run, newest step first. What is damaged counts as absent."""
        sizes = self.place.sizes()
        found = [self._look(name, size) for name, size in sorted(sizes.items()) if parse_name(name)]
        self._known = {key: saved for key, saved in self._known.items() if key[0] in sizes}
        return sorted((s for s in found if s), key=lambda s: (-s.step, s.stage, s.state_id))

    def _look(self, name: str, size: int) -> Saved | None:
        if (name, size) not in self._known:
            try:
                with self.place.read(name) as file:
                    saved = self._read_head(file, name, size)
            except (PlaceError, DamagedError):
                return None
            self._known[name, size] = saved
        return self._known[name, size]

    def _read_head(self, file: IO[bytes], name: str, size: int) -> Saved:
        try:
            length = header_bytes(file.read(LENGTH_BYTES))
            saved = read_header(file.read(length))
        except ValueError as error:
            raise DamagedError(f"{self.place.where}/{name}: {error}") from None
        if saved.name != name or saved.run_id != self.run_id:
            raise DamagedError(f"{self.place.where}/{name}: it holds {saved.name} of run {saved.run_id}")
        if size != LENGTH_BYTES + length + saved.data_bytes:
            raise DamagedError(
                f"{self.place.where}/{name}: it has {size} bytes, not {LENGTH_BYTES + length + saved.data_bytes}"
            )
        return saved

    def load(self, stage: int, state_id: str) -> tuple[Saved, bytearray]:
        """What was saved of the stage as of that state: the facts, and weights and moments behind one another. `DamagedError`
        where it is not there, not whole, or has another digest."""
        sizes = self.place.sizes()
        name = next((n for n in sizes if (told := parse_name(n)) and told[1:] == (stage, state_id)), None)
        if name is None:
            raise DamagedError(f"{self.place.where} has no stage {stage} as of {state_id[:8]}")
        with self.place.read(name) as file:
            saved = self._read_head(file, name, sizes[name])
            data = bytearray(saved.data_bytes)
            self._fill(file, data)
        digest = blake3(data).update(saved.optimizer_age.to_bytes(8, "little")).hexdigest()
        if digest != saved.digest:
            raise DamagedError(f"{self.place.where}/{name}: its bytes are not those that were saved")
        return saved, data

    def _fill(self, file: IO[bytes], data: bytearray) -> None:
        """As much as there is: what is missing, the digest tells."""
        view = memoryview(data)
        while view and (part := file.read(min(self.chunk_bytes, len(view)))):
            view[: len(part)] = part
            view = view[len(part) :]

    def prune(self, stage: int, num_stages: int, lineage: Callable[[str], bool]) -> list[str]:
        """Remove what was saved of the stage before the complete sets that are kept; returns the names. `lineage` says whether
        a commit is one that the run could go back to: only its sets count."""
        sets: dict[tuple[int, str], set[int]] = {}
        for saved in self.survey():
            if lineage(saved.record):
                sets.setdefault((saved.step, saved.record), set()).add(saved.stage)
        complete = sorted(step for (step, _), stages in sets.items() if len(stages) == num_stages)
        if len(complete) < KEPT_SETS:
            return []
        oldest = complete[-KEPT_SETS]
        names = [n for n in self.place.sizes() if (told := parse_name(n)) and told[1] == stage and told[0] < oldest]
        for name in names:
            self.place.remove(name)
        return names
