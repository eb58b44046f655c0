"""DP-Match: three noisy sums whose noise the budget sets; moving images is post-processing.

The strength of bending is part of the search, so trials do not ask the records for it.

So the search is over what is asked (networks, cells, and the share of the moments) and over how
images are moved to it and drawn from. No key changes what a trial costs.
"""

from dpray.search.space import choice, log_uniform, uniform, whole

SPACE = {
    "networks": whole(3, 12, log=True),
    "cells": whole(1, 10, log=True),
    "spc": choice(50, 100, 200),
    "lr": log_uniform(0.03, 0.2),
    "blur": choice(0.0, 0.4, 0.5, 0.7),
    "warp": uniform(0.2, 1.5),
    "moments_share": uniform(0.1, 0.5),
}
