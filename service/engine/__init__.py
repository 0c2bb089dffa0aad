"""What the doors call: validate, admit, tokenise, pack, run, assemble. Knows nothing of HTTP, gRPC or JSON."""
