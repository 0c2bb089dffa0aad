"""`attendant size`: replicas, cores and memory for a load."""
