"""The DHT: `HivemindDirectory` implements `node.ports.Directory`. Importing it takes seconds (hivemind imports torch)."""

from node.directory.adapter import HivemindDirectory
from node.directory.config import DirectoryConfig

__all__ = ["DirectoryConfig", "HivemindDirectory"]
