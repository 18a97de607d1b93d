"""More than one machine: the same passes on Ray. Factors add, so a cluster needs nothing else to be clever.

    with cluster(RayOptions(address="auto")) as resources:
        vlm.fit(pairs, engine=RayFit(resources))

Nothing here imports Ray before a cluster is asked for.
"""

from bayesvlm.engine.cluster import RayOptions, Resources, cluster
from bayesvlm.engine.encoding import RayEncoder, ray_encoder
from bayesvlm.engine.fitting import RayFit

__all__ = ["RayEncoder", "RayFit", "RayOptions", "Resources", "cluster", "ray_encoder"]
