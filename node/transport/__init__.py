"""Streams between peers over gRPC: the only package that imports grpc and what proto/swarm.proto generates.

`checks`, `outbox`, `assembly` and `config` need neither; the in-memory transport of `node/sim` shares them.
Adapters: `node.transport.grpc_transport.GrpcTransport`; without a running node: `node.transport.fetch`.
"""
