"""PSG: the noisy gradients (clip norm, batch, how many) and what images and networks do with them.

Given the number of queries, `iterations` x outer x queries, the noise follows from the budget.
Batch and iterations are choices, for what every combination costs is computed beforehand.
"""

from dpray.search.space import choice, log_uniform, whole

SPACE = {
    "clip_norm": log_uniform(0.03, 0.3),
    "batch_size": choice(1024, 2048, 4096),
    "iterations": choice(15, 30, 60),
    "lr_images": log_uniform(0.05, 1.0),
    "lr_network": log_uniform(0.01, 0.2),
    "pixel_steps": whole(5, 25),
}
