"""DP-kVAE: noisy k-means, then a VAE of all records that is told cluster and class.

The noise follows from the budget, which the clustering shares with the gradients. More clusters
are smaller ones, under the same noise.
"""

from dpray.search.space import choice, log_uniform, whole

SPACE = {
    "clusters": whole(2, 30, log=True),
    "clustering_noise": choice(3.0, 5.0, 10.0),
    "clip_norm": log_uniform(0.3, 3.0),
    "lr": log_uniform(1e-3, 2e-2),
    "batch_size": choice(2048, 4096, 8192),
    "epochs": choice(20.0, 40.0, 60.0, 100.0),
    "kl_weight": log_uniform(0.5, 4.0),
    "hidden": choice(200, 400, 600),
}
