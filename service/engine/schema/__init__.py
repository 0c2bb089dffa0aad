"""Request and response types."""
