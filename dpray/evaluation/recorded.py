"""`RecordedRun`: what is known of a finished run once it has been recorded, all of it public.

Tracking reads such values back, reporting shows them; neither needs to know the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from dpray.privacy.card import Card


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    run_id: str
    method: str
    kind: str  # classifier or synthesizer
    dataset: str  # the word the run was started with: a name or a path; `card.dataset` is to show
    seed: int
    settings: Mapping[str, str]  # the method's, defaults included, as they were recorded
    metrics: Mapping[str, float]
    noisy: frozenset[str] = frozenset()  # metrics that are paid, noisy counts on a hold-out
    card: Card  # epsilon, delta, the verdict and the ledger: the card is the authority
    started: datetime
    samples: bytes | None = None  # samples.png of a synthesizer
