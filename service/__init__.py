"""The server: onnxruntime lives here, torch never does."""

__version__ = "0.1.0"
