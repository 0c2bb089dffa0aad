"""Operations: what the engine does with a request, one per file, from its checks to its results."""
