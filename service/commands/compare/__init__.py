"""`attendant compare`: the embeddings of two artifacts."""
