"""The ways to search: who pays for a trial's look at private records, and who may learn from it."""

from __future__ import annotations

from typing import Literal

# public: trials read other data, and only the best settings meet the private records.
# select: independent draws, a secret number of them, and nothing but the best trial leaves.
# compose: any search at all; every trial that was declared is paid for, finished or not.
# none: nobody pays. To explore with, and not fit for release.
Charge = Literal["public", "select", "compose", "none"]
Law = Literal["geometric", "logarithmic"]  # of the number of trials, with select
Sampler = Literal["random", "tpe"]
Scheduler = Literal["none", "asha", "median"]
