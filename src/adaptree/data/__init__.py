"""From a file of labelled text to batches: read, check, split, encode."""
