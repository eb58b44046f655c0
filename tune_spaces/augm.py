"""AuGM: noisy gradients as in DP-SGD, and how narrow the autoencoder is.

Steps follow from noise and batch at the budget. A narrow autoencoder has less to put noise on and
passes less of a public image through.
"""

from dpray.search.space import choice, log_uniform, whole

SPACE = {
    "clip_norm": log_uniform(0.3, 3.0),
    "lr": log_uniform(1e-3, 2e-2),
    "batch_size": choice(512, 2048, 4096),
    "noise_multiplier": choice(2.0, 3.0, 4.0, 6.0, 8.0),
    "latent": whole(8, 64, log=True),
    "hidden": choice(64, 128, 256),
}
