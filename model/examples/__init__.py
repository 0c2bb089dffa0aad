"""Examples of `attendant-model train`: generated data, and configurations that use it."""
