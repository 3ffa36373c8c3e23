"""Simulated world: the same decisions and the same runtime on virtual time, in one thread, from one seed."""
