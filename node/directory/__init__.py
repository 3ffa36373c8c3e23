"""The DHT: `HivemindDirectory` implements `node.ports.Directory`. Importing it takes seconds (hivemind imports torch)."""

from node.directory.adapter import DirectoryConfig, HivemindDirectory

__all__ = ["DirectoryConfig", "HivemindDirectory"]
