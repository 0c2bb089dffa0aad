"""`attendant embed`: embeddings of files and lines."""
