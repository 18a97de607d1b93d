"""More than one machine: the same passes on Ray. Factors add, so a cluster needs nothing else to be clever."""

from bayesvlm.engine.cluster import RayOptions

__all__ = ["RayOptions"]
