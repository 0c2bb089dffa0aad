"""The Open Inference Protocol, version 2: code shared by its REST and gRPC adapters."""
