"""DP-VAE: noisy gradients as in DP-SGD, and how much the decoder is asked to hold.

Steps follow from noise and batch at the budget. A wider decoder has more weights to put noise on,
so its size is searched together with the weight of the divergence that keeps latents simple.
"""

from dpray.search.space import choice, log_uniform, whole

SPACE = {
    "clip_norm": log_uniform(0.3, 3.0),
    "lr": log_uniform(1e-3, 2e-2),
    "batch_size": choice(512, 2048, 4096, 8192),
    "noise_multiplier": choice(2.0, 3.0, 4.0, 6.0, 8.0, 12.0),
    "kl_weight": log_uniform(0.5, 4.0),
    "latent": whole(8, 32, log=True),
    "hidden": choice(200, 400, 600),
}
