"""Ways to execute the encoder: ONNX Runtime and OpenVINO on CPUs, ONNX Runtime on CUDA GPUs."""
