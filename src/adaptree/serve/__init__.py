"""Serving: thousands of tasks from one process, over one copy of the base."""
