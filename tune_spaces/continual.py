"""Continual: the settings of its learner, psg, some of them together; tasks are given, not chosen.

It is measured after every task, which a private score cannot be: for --charge public alone. For
another learner fix `learner` and bring a space of your own.
"""

from dpray.search.space import choice

SPACE = {
    "learner_settings": choice(
        "",
        "lr_images=0.04",
        "lr_images=0.2",
        "clip_norm=0.05",
        "clip_norm=0.2",
        "iterations=15",
        "iterations=15 pixel_steps=30",
        "batch_size=1024 iterations=15",
    ),
}
