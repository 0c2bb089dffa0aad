"""The engine behind the API adapters. It does not depend on HTTP, gRPC or JSON."""
