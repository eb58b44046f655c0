"""DP2-VAE: stage 2, where the budget is spent, and the encoder that each subset brings to it.

The number of encoders stays: it sets the cost of everything. Given steps, the noise follows from
the budget. Steps are a choice, for what each number costs is computed beforehand.
"""

from dpray.search.space import choice, log_uniform, whole

SPACE = {
    "clip_norm": log_uniform(0.3, 3.0),
    "lr": log_uniform(3e-3, 3e-2),
    "steps": choice(150, 300, 600),
    "kl_weight": log_uniform(0.5, 4.0),
    "hidden": choice(32, 64, 128),
    "pretrain_steps": whole(50, 200, log=True),
    "adapt_lr": log_uniform(5e-4, 8e-3),
}
