"""Ways to execute a graph."""
