"""Streams between peers over gRPC: the only package that imports grpc and what proto/swarm.proto generates.

`checks`, `outbox`, `assembly` and `config` need neither; the in-memory transport of `node/sim` shares them.
Adapters: `node.transport.grpc_transport.GrpcTransport`; without a running node: `node.transport.fetch`.
"""

import os

# gRPC reads these when it is loaded, and has no other way to be told. Without them it writes to everybody's stderr: a line for
# each process that this one starts (the DHT daemon), and others that we say better ourselves.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
