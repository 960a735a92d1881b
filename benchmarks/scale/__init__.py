"""A plan past what we can run: measured service times, a simulation that is checked against two replicas, and costs.

    python -m benchmarks.scale.measure services     seconds of a batch, of HTTP, of loading a task: each alone
    python -m benchmarks.scale.measure replicas     two real replicas under load
    python -m benchmarks.scale.page                 simulate, compare, plan: results/scale/table.md and its figures

The page for readers is docs/scale.md.
"""
