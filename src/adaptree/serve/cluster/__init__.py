"""Serving on Ray Serve: replicas of the engine on the machines of a cluster, behind HTTP servers of ours.

`ClusterEngine` has the interface of an `Engine`, and asks the replicas (`EngineReplica`), each of which has an `Engine`
over the same store. Which one is asked for a task, `TaskRouter` says.
"""

from adaptree.serve.cluster.engine import ClusterEngine
from adaptree.serve.cluster.replicas import Replicas

__all__ = ["ClusterEngine", "Replicas"]
