"""DP-Match: four noisy sums whose noise the budget sets; moving images is post-processing.

So the search is over what is asked (networks, cells, and the share of the moments) and over how
images are moved to it. No key changes what a trial costs. How far draws are bent is not searched
for: it depends on what the images show, so every run asks its own records, and garments that
stand in for digits do not decide it.
"""

from dpray.search.space import choice, log_uniform, uniform, whole

SPACE = {
    "networks": whole(3, 12, log=True),
    "cells": whole(1, 10, log=True),
    "spc": choice(50, 100, 200),
    "lr": log_uniform(0.03, 0.2),
    "blur": choice(0.0, 0.4, 0.5, 0.7),
    "moments_share": uniform(0.1, 0.5),
}
