"""DataLens: how many images the budget is spread over, what of a gradient counts, and the stride.

The number of teachers stays: it sets how much of an answer is noise. Given rounds and questions,
the noise follows from the budget.
"""

from dpray.search.space import choice, log_uniform, uniform, whole

SPACE = {
    "rounds": choice(25, 50, 100),
    "questions": choice(10, 20, 40),
    "signs": whole(5, 60, log=True),
    "threshold": uniform(0.1, 0.7),
    "stride": log_uniform(0.03, 0.3),
    "fits": whole(5, 50, log=True),
    "lr": log_uniform(5e-4, 1e-2),
    "teacher_steps": whole(2, 20, log=True),
}
