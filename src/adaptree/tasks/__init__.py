"""A task as data: its record, its folder on disk, and the store that keeps versions of it."""
