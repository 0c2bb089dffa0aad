"""gRPC: one file a service. Doors translate; they know no numpy, queue or session."""
