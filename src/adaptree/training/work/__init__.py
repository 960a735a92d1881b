"""Calls that can be carried out elsewhere: in this process, in several of this machine, or on a Ray cluster.

What has many independent parts (the files of a stream, the cells of an experiment) makes a `Call` of each and hands
them to an `Executor`. It need not know which one it is.
"""

from adaptree.training.work.executor import Call, Executor, InThisProcess, Outcome, executor_for
from adaptree.training.work.processes import LocalProcesses

__all__ = ["Call", "Executor", "InThisProcess", "LocalProcesses", "Outcome", "executor_for"]
