"""What a row with a fixed noise multiplier costs, known before anything is trained.

The steps and the sample rate follow from the settings and the public number of records.
"""

from __future__ import annotations

import dp_accounting as dp

from dpray.data.datasets import BUILT_IN
from dpray.methods.dp_vae import DPVae
from dpray.privacy.accounting import cost_of
from dpray.privacy.queries import GaussianSum, PoissonGradients
from tables.rows import Row


def epsilon_of(row: Row) -> float | None:
    """An upper bound on epsilon of one run, or None where the row fixes no noise."""
    if row.noise_multiplier is None:
        return None
    return cost_of(_events(row, row.noise_multiplier), row.spec(0).delta).epsilon


def _events(row: Row, noise_multiplier: float) -> list[dp.DpEvent]:
    records = BUILT_IN[row.dataset].num_train
    batch_size = min(row.settings["batch_size"], records)
    gradients = PoissonGradients(
        sample_rate=batch_size / records,
        steps=round(row.settings["epochs"] * records / batch_size),
        clip_norm=row.settings["clip_norm"],
        noise_multiplier=noise_multiplier,
        expected_batch_size=batch_size,
    )
    if row.settings.get("class_model") != "noisy-statistics":
        return [gradients.event]
    noise = row.settings.get("statistics_noise", DPVae.statistics_noise)
    return [GaussianSum(name="class statistics", noise_multiplier=noise).event, gradients.event]
