"""Published models as their authors store them: hub, files, sentence-transformers settings and tokenizers."""
