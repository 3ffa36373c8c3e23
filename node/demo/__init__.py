"""`regrow demo`: a whole swarm of processes on this machine, watched from outside like any other swarm."""
