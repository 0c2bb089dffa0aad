"""Operations: what the server does with a request, one per file, from its checks to its results."""
