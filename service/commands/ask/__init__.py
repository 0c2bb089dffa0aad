"""`attendant ask`: what the model sees in a text."""
