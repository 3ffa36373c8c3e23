"""Mutants that nothing can tell from the code, or that need not be told from it, each with the reason.

The key is what `--list` and the table call a mutant. One that the code does not yield any more fails a unit test.
"""

EXPLAINED: dict[str, str] = {}
