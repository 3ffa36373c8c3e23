"""What a running node says of itself: the line of `--json`, kept beside its state for the commands that look for it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from node.ports import UnusableError

FILE_NAME = "running.json"


@dataclass(frozen=True, slots=True)
class Running:
    """Where a node is reached. Addresses are HOST:PORT."""

    pid: int
    peer: str
    invite: str
    grpc: str
    http: str
    state_dir: str

    def line(self) -> str:
        """One line of JSON, without the newline."""
        return json.dumps(asdict(self))


def read_running(state_dir: Path) -> Running:
    """The node that runs on this state directory. Raises `UnusableError`: 2 for a wrong directory, 3 if it is down."""
    try:
        told = json.loads((state_dir / FILE_NAME).read_bytes())
        running = Running(**told)
    except FileNotFoundError:
        if state_dir.is_dir():
            raise UnusableError(3, f"no node runs on the state directory {state_dir}; start it first") from None
        raise UnusableError(2, f"there is no state directory {state_dir}; check --state-dir") from None
    except (ValueError, TypeError) as error:
        raise UnusableError(2, f"{state_dir / FILE_NAME} is damaged ({error}); restart the node") from None
    except OSError as error:
        raise UnusableError(2, f"cannot read {state_dir / FILE_NAME}: {error.strerror}") from None
    if not _alive(running.pid):
        raise UnusableError(3, f"the node on {state_dir} (process {running.pid}) is gone; start it again")
    return running


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
