"""What the doors call: validate, admit, tokenise, pack, run, build_results. Knows nothing of HTTP, gRPC or JSON."""
