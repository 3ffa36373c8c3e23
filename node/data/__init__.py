"""Training data on this machine: token shards found by digest and verified, the samples in them, and how they are made.

`files` finds and verifies shards, `store` reads samples, `documents` reads text, `prepare` turns it into shards, `corpus` knows
the demo's text. Nothing here knows of peers: what this machine lacks (`BlobFiles.missing`) others bring (`BlobFiles.writer`).
"""
