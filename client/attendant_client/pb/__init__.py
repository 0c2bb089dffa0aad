"""Generated stubs of proto/attendant/v1/encoder.proto."""
