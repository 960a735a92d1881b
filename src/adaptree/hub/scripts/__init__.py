"""Scripts that go into an exported ONNX folder as predict.py: they run the graph without adaptree."""
