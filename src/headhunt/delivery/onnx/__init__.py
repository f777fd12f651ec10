"""ONNX export and its torch-free runtime."""
