"""Conversion of published model weights to a servable artifact, and the code that training and serving share."""
