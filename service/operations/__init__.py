"""Operations, one per file, from validation of the request to its results."""
