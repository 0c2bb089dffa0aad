"""gRPC: API adapters between protobuf and the engine's types."""
