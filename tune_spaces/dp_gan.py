"""DP-GAN: noisy gradients of the critic, and how the two networks keep pace with each other.

Steps follow from noise and batch at the budget. Under noise a critic needs many steps for each of
the generator; how many is searched together with the rates of both.
"""

from dpray.search.space import choice, log_uniform, whole

SPACE = {
    "clip_norm": log_uniform(0.1, 3.0),
    "lr_critic": log_uniform(2e-4, 5e-3),
    "lr_generator": log_uniform(2e-4, 5e-3),
    "batch_size": choice(512, 1024, 2048, 4096),
    "noise_multiplier": choice(0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0),
    "critic_steps": whole(1, 20, log=True),
    "hidden": choice(128, 256, 512),
}
