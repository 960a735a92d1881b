"""Training a task over a frozen base."""
