"""DP-SGD: what a step may tell (clip norm, batch, noise) and what is made of it (learning rate).

The number of steps follows from noise and batch at the budget, so neither steps nor epochs are
here. Noise and batch are choices, for what every combination costs is computed beforehand.
"""

from dpray.search.space import choice, log_uniform, uniform

SPACE = {
    "clip_norm": log_uniform(0.03, 1.0),
    "lr": log_uniform(0.3, 30.0),
    "momentum": uniform(0.0, 0.95),
    "batch_size": choice(256, 1024, 4096, 8192),
    "noise_multiplier": choice(1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0),
}
