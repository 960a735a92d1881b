"""One file per row: `tables(setup)` returns what is run and compared; QUICK: whether `make bench-quick` has it.

`before(setup)` returns the runs that prepare it: they store a task, or make a large model.
"""
