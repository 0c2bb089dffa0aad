"""Training of encoders: tokenizer, masked language modeling, checkpoints, and publication in Hugging Face's format."""
