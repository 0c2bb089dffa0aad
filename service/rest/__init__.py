"""REST: API adapters between HTTP and JSON and the engine's types."""
