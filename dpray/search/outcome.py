"""What a search ends with: all that may leave it."""

from __future__ import annotations

from dataclasses import dataclass

from dpray.execute import Result
from dpray.search.cost import SearchCost
from dpray.search.journal import Finished, best_of
from dpray.search.trials import SearchSpec
from dpray.spec import RunSpec


@dataclass(frozen=True)
class SearchOutcome:
    """Guarantee: with `charge` select there are no trials here, for only the best one leaves."""

    search_id: str
    search: SearchSpec
    cost: SearchCost
    trials: tuple[Finished, ...]  # that ended, by number; empty with `charge` select
    best: Result | None  # under the id of the search; None where no trial has a score
    final: RunSpec | None = None  # the best settings, as a run on all private records

    @property
    def best_trial(self) -> Finished | None:
        """The one with the best score of those that came to an end and may be seen."""
        return best_of(self.trials)
