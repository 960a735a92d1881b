"""The maths: pure functions over tensors; nothing here knows of models, tasks or files."""
