"""Moments: how many directions and cells are worth their noise, and where images are cut short.

The budget sets the noise, whatever is drawn, and no key changes what a trial costs. How far draws
are bent is not searched for: every run asks its own records.
"""

from dpray.search.space import choice, log_uniform, whole

SPACE = {
    "dimensions": whole(20, 200, log=True),
    "components": choice(1, 2, 4, 7, 10),
    "radius": log_uniform(0.2, 0.6),
}
