"""GS-WGAN: the critics, how they are brought up to the generator, and the generator's step.

The number of critics stays: it sets the cost of everything. Given steps, the noise follows from
the budget. Steps are a choice, for what each number costs is computed beforehand. Gradients are
longer than the clip, so that its norm is a factor that Adam takes out again: it is not searched.
"""

from dpray.search.space import choice, log_uniform, whole

SPACE = {
    "steps": choice(200, 400, 800),
    "critic_hidden": choice(0, 16, 32, 64),
    "adapt_steps": whole(1, 10, log=True),
    "adapt_lr": log_uniform(1e-3, 1e-1),
    "warm_steps": whole(5, 200, log=True),
    "lr": log_uniform(2e-3, 3e-2),
    "hidden": choice(32, 64, 128),
    "latent": whole(3, 20, log=True),
    "grain": choice(1, 2, 4),
}
