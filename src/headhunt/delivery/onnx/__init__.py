"""Export a model to ONNX (`export`) and run the export without torch (`runtime`).

Nothing is re-exported here: `export` imports torch, and `runtime` must work without it.
"""
