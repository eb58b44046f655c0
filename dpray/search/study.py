"""The Optuna study of a search: it chooses settings for a sampler that looks back, and shows all.

It lies in Optuna's journal format, so that Optuna's own tools open it. The search's journal is the
truth: whatever a crash left out of the study is put back from it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dpray.search.budgets import CannotMeetBudget
from dpray.search.journal import WORST, Finished, Journal
from dpray.search.space import Draw, Space, to_optuna

_MOST_REJECTED = 1000  # suggestions in a row before a space is said not to fit its budget
_NUMBER = "trial"  # where a trial of the study keeps its number in the search


class Study:
    def __init__(self, path: Path, name: str, space: Space, journal: Journal, *, seed: int) -> None:
        import optuna  # slow to import, and few commands need it
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            # After a crash it must not suggest again what it suggested at first.
            own_seed = seed + len(journal.finished()) + len(journal.unfinished())
            sampler = optuna.samplers.TPESampler(constant_liar=True, seed=own_seed)
        self._study = optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(path))),
            study_name=name,
            direction="maximize",
            sampler=sampler,
            load_if_exists=True,
        )
        self._distributions = to_optuna(space)
        self._asked: dict[int, Any] = {}  # trials of Optuna that are under way, by our number
        self._catch_up(journal)

    def draw(self, number: int, refuse: Callable[[Draw], None]) -> Draw:
        """Settings for trial `number`, by what is known of others. `refuse` raises if they misfit.

        A suggestion that misfits is told as failed, so that the sampler goes elsewhere. That it
        does follows from public numbers alone.
        """
        from optuna.trial import TrialState

        for _ in range(_MOST_REJECTED):
            asked = self._study.ask(self._distributions)
            try:
                refuse(dict(asked.params))
            except CannotMeetBudget as error:
                refusal = error
                self._study.tell(asked, state=TrialState.FAIL)
                continue
            asked.set_user_attr(_NUMBER, number)
            self._asked[number] = asked
            return dict(asked.params)
        raise CannotMeetBudget(f"{_MOST_REJECTED} draws and none meets the budget; {refusal}")

    def ended(self, one: Finished) -> None:
        """What became of a trial, whether the study chose its settings or not."""
        from optuna.trial import TrialState, create_trial

        known = self._by_number().get(one.number)
        if one.score == WORST:
            state, value = TrialState.FAIL, None
        elif one.stopped:
            state, value = TrialState.PRUNED, one.score
        else:
            state, value = TrialState.COMPLETE, one.score
        if known is None:
            frozen = create_trial(
                state=state,
                value=value,
                params=dict(one.draw),
                distributions=self._distributions,
                user_attrs={_NUMBER: one.number},
            )
            self._study.add_trial(frozen)
            return
        asked = self._asked.pop(one.number, None)
        if state is TrialState.PRUNED:
            if asked is not None:
                asked.report(one.score, step=0)  # a sampler learns from the last score as well
            value = None
        self._study.tell(known.number, value, state=state, skip_if_finished=True)

    def _catch_up(self, journal: Journal) -> None:
        from optuna.trial import TrialState

        started = {one.number for one in journal.unfinished()}
        for one in journal.finished():
            self.ended(one)
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if trial.user_attrs.get(_NUMBER) not in started:
                self._study.tell(trial.number, state=TrialState.FAIL)  # asked and never started

    def _by_number(self) -> dict[Any, Any]:
        trials = self._study.get_trials(deepcopy=False)
        return {one.user_attrs[_NUMBER]: one for one in trials if _NUMBER in one.user_attrs}
