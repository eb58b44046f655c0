"""DP-MERF: one noisy mean embedding, whose noise the budget sets; the rest is post-processing.

So the search is over the embedding (kernel width, number of frequencies: more of them share the
same noise) and over the generator that is fitted to it. No key changes what a trial costs.
"""

from dpray.search.space import choice, log_uniform, whole

SPACE = {
    "bandwidth": log_uniform(0.05, 0.4),
    "frequencies": whole(500, 5000, log=True),
    "generator": choice("conv", "mlp"),
    "latent": whole(3, 20, log=True),
    "lr": log_uniform(2e-3, 3e-2),
}
