"""PATE-GAN: how many votes the budget is spread over, and how student and generator use them.

The number of teachers stays: it sets how much of a vote is noise. Given rounds and questions, the
noise follows from the budget.
"""

from dpray.search.space import choice, log_uniform, whole

SPACE = {
    "rounds": choice(25, 50, 100),
    "questions": choice(50, 100, 200),
    "teacher_steps": whole(2, 20, log=True),
    "teacher_lr": log_uniform(1e-3, 3e-2),
    "lr": log_uniform(3e-4, 3e-3),
    "lr_student": log_uniform(3e-4, 3e-3),
    "student_steps": whole(20, 200, log=True),
}
