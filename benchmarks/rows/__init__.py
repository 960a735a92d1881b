"""One file per row: `tables(setup)` says what is run and compared; QUICK, whether `make bench-quick` has it.

What must be there before it can run (a stored task, a large model) is in `before(setup)`, a list of runs.
"""
