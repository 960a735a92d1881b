"""Architectures, sites, hooks, the frozen base with its activation cache, and tasks bound to it."""
