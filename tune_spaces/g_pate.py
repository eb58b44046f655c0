"""G-PATE: how many votes the budget is spread over, how coarse they are, and the stride.

The number of teachers stays: it sets how much of a vote is noise. Every projection of every image
is a vote. Given their number, the noise follows from the budget.
"""

from dpray.search.space import choice, log_uniform, uniform, whole

SPACE = {
    "rounds": choice(25, 50, 100),
    "questions": choice(10, 20, 40),
    "bins": whole(3, 20),
    "reach": uniform(1.0, 3.0),
    "stride": log_uniform(0.5, 10.0),
    "fits": whole(5, 50, log=True),
    "lr": log_uniform(5e-4, 1e-2),
}
