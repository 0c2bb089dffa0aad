"""Commands of `attendant` other than `serve`, one module per command. `run(arguments)` returns the exit status."""
