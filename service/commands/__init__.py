"""Commands of `attendant` other than `serve`, one module each; `run(arguments)` returns the exit status."""
