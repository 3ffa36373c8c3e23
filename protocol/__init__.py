"""What peers must agree on: pure decisions, no clock, no event loop, no tensor, no socket."""
