"""Export of a checkpoint to an artifact."""
