"""DPMI: the private learner over latents. What is public, model and extraction, costs nothing.

Steps follow from noise and batch at the budget. The keys are those of the default combination,
whose learner is a VaeGM told the label; a public model would be trained anew for every draw of its
own settings, so those stay.
"""

from dpray.search.space import choice, log_uniform

SPACE = {
    "clip_norm": log_uniform(0.15, 1.5),
    "lr": log_uniform(2e-3, 3e-2),
    "batch_size": choice(256, 1024, 2048),
    "noise_multiplier": choice(1.5, 2.0, 3.0, 4.0, 6.0, 8.0),
    "kl_weight": log_uniform(0.3, 3.0),
    "hidden": choice(32, 64, 128),
    "label_scale": log_uniform(2.0, 12.0),
}
