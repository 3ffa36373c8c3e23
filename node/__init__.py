"""A running node: ports, runtime, adapters and command line."""

__version__ = "0.1.0"
