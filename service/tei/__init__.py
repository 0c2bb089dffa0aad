"""The API of text-embeddings-inference (TEI), between the REST and gRPC adapters and the engine."""
