"""What a search ends with: all that may leave it."""

from __future__ import annotations

from dataclasses import dataclass

from dpray.execute import Result
from dpray.search.cost import SearchCost
from dpray.search.journal import Finished
from dpray.search.trials import SearchSpec


@dataclass(frozen=True)
class SearchOutcome:
    """Guarantee: with `charge` select there are no trials here, for only the best one leaves."""

    search_id: str
    search: SearchSpec
    cost: SearchCost
    trials: tuple[Finished, ...]  # that ended, by number; empty with `charge` select
    best: Result | None  # under the id of the search; None where no trial has a score
