"""The Open Inference Protocol, version 2, between the REST and gRPC adapters and the engine."""
