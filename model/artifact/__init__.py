"""The artifact: its files, tokenizer and packed batches. Imports no torch, because the server reads it."""
