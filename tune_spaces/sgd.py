"""SGD without privacy: the rate, the batch and how long. For --charge public or none alone."""

from dpray.search.space import choice, log_uniform, whole

SPACE = {
    "lr": log_uniform(1e-4, 1e-2),
    "batch_size": choice(64, 128, 256),
    "epochs": whole(2, 12),
}
