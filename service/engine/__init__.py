"""The engine behind the API adapters. It knows no HTTP, gRPC or JSON."""
