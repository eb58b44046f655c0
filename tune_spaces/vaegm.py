"""VaeGM: a VAE for each class, so few records and small networks.

Steps follow from noise and batch at the budget, which every class has to itself. The batch is that
of one class: a sixth to a half of the records of one in MNIST.
"""

from dpray.search.space import choice, log_uniform, whole

SPACE = {
    "clip_norm": log_uniform(0.3, 3.0),
    "lr": log_uniform(2e-3, 3e-2),
    "batch_size": choice(1024, 2048, 3072),
    "noise_multiplier": choice(2.0, 3.0, 5.0, 8.0, 12.0, 20.0),
    "kl_weight": log_uniform(0.5, 4.0),
    "latent": whole(4, 20, log=True),
    "hidden": choice(32, 64, 128),
    "grain": choice(1, 2),
}
