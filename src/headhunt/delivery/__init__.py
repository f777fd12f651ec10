"""Deliver a trained model: to the Hugging Face Hub, as an ONNX export, over HTTP, or applied to a corpus.

`hub` uploads a model folder, `onnx` exports a model and runs the export without torch, `serve` answers HTTP requests,
and `corpus` labels files of any size.
"""
