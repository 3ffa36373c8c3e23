"""Files named by their digest: where they are on this machine, and that they are what the manifest says.

Sources of a `FileRef` are tried in order: paths (relative ones against each of `bases`: the manifest file's folder, the current
folder), `file:` URLs, then the cache folder itself, where downloads and what peers sent are kept as DIGEST.blob; last the other
URLs. Each file is read and hashed once (`node.data.verified`).
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import blake3

from node.data.remote import SourceError, is_url, open_url, path_of_file_url, read_some
from node.data.verified import READ_BYTES, Identity, Memory, digest_of
from node.ports import UnusableError
from protocol.manifest import FileRef, Manifest, TokenShard

log = logging.getLogger(__name__)
MAX_HELD = 64
"""Files held open at once: descriptors are few."""
Progress = Callable[[int, int], None]
"""(bytes done, bytes in all)"""


class BlobFiles:
    """Finds files by digest. Not safe against a file that is changed with its size and times kept."""

    def __init__(self, cache_dir: Path, bases: Sequence[Path] = (Path(),)) -> None:
        self._cache_dir = cache_dir
        self._bases = tuple(bases)
        self._memory = Memory(cache_dir / "verified.json")
        self._found: dict[str, Path] = {}
        self._open: dict[str, Path] = {}

    # ---- finding ----

    def find(self, ref: FileRef, what: str = "file") -> Path | None:
        """A verified file with this content on this machine, or None. URLs are not asked.

        Raises `UnusableError` where a source is there but is not what the manifest says, and no other source has it."""
        problems = []
        for path in self._candidates(ref):
            problem = self._problem(path, ref, what)
            if problem is None:
                self._found[ref.digest] = path
                return path
            problems.append(problem)
        problems = [problem for problem in problems if problem]
        if problems:
            raise UnusableError(2, problems[0])
        return None

    def obtain(self, ref: FileRef, what: str = "file", progress: Progress | None = None) -> Path:
        """Like `find`, but downloads from the sources that are URLs. Raises `UnusableError` with what was tried."""
        path = self.find(ref, what)
        if path is not None:
            return path
        failures = []
        for url in filter(is_url, ref.sources):
            try:
                return self._download(url, ref, progress)
            except SourceError as error:
                failures.append(f"{url}: {error}")
        tried = "; ".join(failures) or f"not at {', '.join(map(str, self._candidates(ref)))}"
        raise UnusableError(
            2, f"{what} {ref.digest[:16]}… is missing: {tried}; put it there or join a run whose peers serve it"
        )

    def missing(self, manifest: Manifest) -> list[TokenShard]:
        """Token shards that no local source has intact, in the manifest's order. What is found can be served from then on."""
        lacking = []
        for what, shard in named_shards(manifest):
            try:
                if self.find(shard, what) is None:
                    lacking.append(shard)
            except UnusableError as error:
                log.warning("%s", error)
                lacking.append(shard)
        return lacking

    def blob_path(self, digest: str) -> Path | None:
        """Path of a file that was verified and has not changed since, for serving it to peers."""
        places = [path for path in (self._found.get(digest), self._cached(digest), self._open.get(digest)) if path]
        return next((path for path in places if self._is_intact(path, digest)), None)

    def _is_intact(self, path: Path, digest: str) -> bool:
        known = self._memory.files.get(str(path.absolute()))
        try:
            return known is not None and known == (Identity.of(path.stat()), digest)
        except OSError:
            return False

    def keep(self, ref: FileRef) -> None:
        """See to it that a file that was found stays, whatever becomes of its folder: by a second name in the cache, which
        costs no space, or, on another file system, by holding it open."""
        path, cached = self._found[ref.digest], self._cached(ref.digest)
        if cached == path or ref.digest in self._open or self._is_intact(cached, ref.digest):
            return
        identity = self.identity(path)
        try:
            cached.parent.mkdir(parents=True, exist_ok=True)
            cached.unlink(missing_ok=True)
            os.link(path, cached)
        except OSError:
            self._hold(ref.digest, path, identity)
        else:
            self._remember(cached, identity, ref.digest)

    def _hold(self, digest: str, path: Path, identity: Identity) -> None:
        if len(self._open) >= MAX_HELD:
            return
        with suppress(OSError):
            held = Path(f"/proc/self/fd/{os.open(path, os.O_RDONLY | os.O_CLOEXEC)}")
            self._open[digest] = held
            self._memory.files[str(held)] = (identity, digest)

    def identity(self, path: Path) -> Identity:
        """Identity of a verified file at the time when it was verified."""
        return self._memory.files[str(path.absolute())][0]

    def _candidates(self, ref: FileRef) -> Iterator[Path]:
        for source in ref.sources:
            if is_url(source):
                local = path_of_file_url(source)
                if local is not None:
                    yield local
                continue
            path = Path(source)
            yield from dict.fromkeys([path] if path.is_absolute() else [base / path for base in self._bases])
        yield self._cached(ref.digest)
        if ref.digest in self._open:
            yield self._open[ref.digest]

    def _cached(self, digest: str) -> Path:
        return self._cache_dir / f"{digest}.blob"

    # ---- verifying ----

    def _problem(self, path: Path, ref: FileRef, what: str) -> str | None:
        """None: the file is intact. '': there is none. Else the sentence that says what is wrong with it."""
        try:
            status = path.stat()
            problem = _wrong_kind(path, status, ref, what)
            if problem is not None:
                return problem
            known = self._memory.files.get(str(path.absolute()))
            if known != (Identity.of(status), ref.digest):
                return self._verify(path, ref, what, Identity.of(status))
        except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a NUL in the name
            return ""
        except OSError as error:
            return f"{what} {path} cannot be read ({error.strerror}); check its permissions and its disk"
        return None

    def _verify(self, path: Path, ref: FileRef, what: str, identity: Identity) -> str | None:
        digest = digest_of(path)
        if Identity.of(path.stat()) != identity:
            return f"{what} {path} was changed while it was read; wait until it is complete and start again"
        if digest != ref.digest:
            return (
                f"{what} {path} is not the file of the manifest: its digest is {digest[:16]}…, not {ref.digest[:16]}…;"
                " restore it or run `regrow data prepare` again"
            )
        self._remember(path, identity, digest)
        return None

    def _remember(self, path: Path, identity: Identity, digest: str) -> None:
        self._memory.files[str(path.absolute())] = (identity, digest)
        self._memory.save()

    def largest_id(self, digest: str, dtype: str) -> int | None:
        """The largest token id in the shard with this content, if it was ever looked for."""
        return self._memory.largest_ids.get(f"{digest} {dtype}")

    def remember_largest_id(self, digest: str, dtype: str, largest: int) -> None:
        """Every id of the shard was looked at."""
        self._memory.largest_ids[f"{digest} {dtype}"] = largest
        self._memory.save()

    # ---- bringing in ----

    def writer(self, ref: FileRef) -> BlobWriter:
        """For bytes from elsewhere; they become a file of the cache only if digest and size fit."""
        return BlobWriter(self, ref, self._cached(ref.digest))

    def _download(self, url: str, ref: FileRef, progress: Progress | None) -> Path:
        with open_url(url) as stream, self.writer(ref) as out:
            done = 0
            while chunk := read_some(stream, READ_BYTES):
                out.write(chunk)
                done += len(chunk)
                if progress:
                    progress(done, ref.num_bytes)
            return out.commit()

    def accept(self, path: Path, digest: str) -> None:
        """A `BlobWriter` has verified the file at `path`."""
        self._found[digest] = path
        self._remember(path, Identity.of(path.stat()), digest)


class BlobWriter:
    """Collects one file in order; a context manager that leaves nothing behind unless `commit` succeeded.

    `write` and `commit` raise `SourceError` when the bytes are not those of the digest and `UnusableError` when the disk is
    full or the folder cannot be written."""

    def __init__(self, blobs: BlobFiles, ref: FileRef, path: Path) -> None:
        self._blobs = blobs
        self._ref = ref
        self._path = path
        self._partial = path.with_name(f".{path.name}.{os.getpid()}")
        self._hasher = blake3.blake3()
        self._size = 0
        self._file: IO[bytes] | None = None

    def __enter__(self) -> BlobWriter:
        try:
            self._partial.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._partial.open("wb")
        except OSError as error:
            raise self._unwritable(error) from None
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            with suppress(OSError):  # closing writes what is buffered: nobody needs it
                self._file.close()
        self._partial.unlink(missing_ok=True)

    def write(self, data: bytes) -> None:
        """The next bytes."""
        assert self._file is not None, "BlobWriter is a context manager"
        self._size += len(data)
        if self._size > self._ref.num_bytes:
            raise SourceError(f"sent more than the {self._ref.num_bytes} bytes of {self._ref.digest[:16]}…")
        self._hasher.update(data)
        try:
            self._file.write(data)
        except OSError as error:
            raise self._unwritable(error) from None

    def commit(self) -> Path:
        """All bytes are here."""
        assert self._file is not None, "BlobWriter is a context manager"
        if self._size < self._ref.num_bytes:
            raise SourceError(f"sent {self._size} of the {self._ref.num_bytes} bytes of {self._ref.digest[:16]}…")
        if self._hasher.hexdigest() != self._ref.digest:
            raise SourceError(f"sent bytes whose digest is not {self._ref.digest[:16]}…")
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._partial.replace(self._path)
        except OSError as error:
            raise self._unwritable(error) from None
        self._blobs.accept(self._path, self._ref.digest)
        return self._path

    def _unwritable(self, error: OSError) -> UnusableError:
        return UnusableError(2, f"cannot write {self._path} ({error.strerror}); free some space or choose another --state-dir")


def named_shards(manifest: Manifest) -> Iterator[tuple[str, TokenShard]]:
    """Each token shard with its place in the manifest, for messages."""
    for name, shards in (("train", manifest.data.train), ("validation", manifest.data.validation)):
        for i, shard in enumerate(shards):
            yield f"data.{name}[{i}]:", shard


def _wrong_kind(path: Path, status: os.stat_result, ref: FileRef, what: str) -> str | None:
    again = "restore it or run `regrow data prepare` again"
    if stat.S_ISDIR(status.st_mode):
        return f"{what} {path} is a directory, not a file; name the file in data sources"
    if not stat.S_ISREG(status.st_mode):
        return f"{what} {path} is not a regular file; name a file in data sources"
    if status.st_size == 0:
        return f"{what} {path} is empty, not {ref.num_bytes} bytes; {again}"
    if status.st_size != ref.num_bytes:
        kind = "truncated" if status.st_size < ref.num_bytes else "too long"
        return f"{what} {path} is {kind}: {status.st_size} bytes, not {ref.num_bytes}; {again}"
    return None
