"""DP-Sinkhorn: the generator, the step of its optimiser, and how images are compared.

Every image gradient is clipped and hardly any is shorter than the clip, so that its norm is no more
than a factor that Adam takes out again: it is not searched. Given steps and batches, the noise
follows from the budget; both are choices, for what each costs is computed beforehand.
"""

from dpray.search.space import choice, log_uniform, whole

SPACE = {
    "steps": choice(5_000, 10_000, 20_000, 40_000),
    "batch_size": choice(25, 50, 100),
    "lr": log_uniform(3e-4, 1e-2),
    "hidden": choice(32, 64, 128),
    "latent": whole(3, 20, log=True),
    "grain": choice(1, 2, 4),
    "fresh": choice(0.0, 0.2, 0.5, 1.0),
    "blur": log_uniform(0.01, 10.0),
}
