"""DP-CGAN: noisy gradients of a small critic, by plain descent, and the rates of both networks.

Steps follow from noise and batch at the budget. Plain descent moves by the bound, so the bound and
the critic's rate trade off against each other.
"""

from dpray.search.space import choice, log_uniform

SPACE = {
    "clip_norm": log_uniform(0.3, 3.0),
    "lr_critic": log_uniform(0.02, 1.0),
    "lr_generator": log_uniform(3e-4, 5e-3),
    "batch_size": choice(300, 600, 1200, 2400),
    "noise_multiplier": choice(0.75, 1.0, 1.5, 2.0, 3.0, 4.0),
    "critic_steps": choice(1, 2, 5),
    "label_scale": log_uniform(1.0, 8.0),
}
