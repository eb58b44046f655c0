"""`tune(search)`: a search from its specification to a registered model and one epsilon for all.

The main path: refuse what is wrong, compute what the whole search costs, write its journal, make
the trials, let the best one leave, record. A search that was cut off anywhere goes on by its id.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from dpray import methods
from dpray.api import Say, with_public_words
from dpray.errors import DprayError, NoTrialWorked
from dpray.execute import Result, check, execute, load_for
from dpray.pool import Pool
from dpray.progress import Progress, silent
from dpray.reporting.picture import draw_run
from dpray.reporting.search_plots import draw_search
from dpray.runs import RunFolder, runs_folder
from dpray.search.budgets import DataFacts
from dpray.search.conduct import run_here
from dpray.search.cost import SearchCost, cost_beforehand
from dpray.search.ending import check_charges, publish, with_search_on_card
from dpray.search.folder import SearchFolder, make_search_folder, new_search_id
from dpray.search.handing_out import Trials, begin
from dpray.search.journal import Finished, Journal
from dpray.search.outcome import SearchOutcome
from dpray.search.refusals import check_data
from dpray.search.trials import SearchSpec
from dpray.spec import RunSpec, dataset_word


@dataclass(frozen=True)
class Tuned:
    """A finished search: what left it, where that is registered, and where its folder is."""

    outcome: SearchOutcome
    model: str | None  # registry URI; None where recording was switched off
    folder: SearchFolder

    @property
    def result(self) -> Result:
        assert self.outcome.best is not None  # `tune` raises where no trial has a score
        return self.outcome.best


def with_words(search: SearchSpec) -> SearchSpec:
    """`search` with the data it reads written out in full."""
    search = replace(
        search,
        dataset=dataset_word(search.dataset),
        proxy=None if search.proxy is None else dataset_word(search.proxy),
    )
    if getattr(methods.find(search.method), "public_data", None) is None:
        return search
    words = with_public_words(
        RunSpec(method=search.method, dataset=search.dataset, public=search.public)
    )
    return replace(search, dataset=words.dataset, public=words.public)


def tune(
    search: SearchSpec,
    *,
    folder: SearchFolder | None = None,
    conduct: Callable[..., None] = run_here,
    start: Callable[..., Result] = execute,
    pool: Pool | None = None,
    track: bool = True,
    progress: Progress = silent,
    say: Say = lambda text: None,
) -> Tuned:
    """Runs a search, or with the `folder` of one takes that up where it stopped.

    `conduct` is who makes the trials: a loop in this process, or Ray Tune. `start` is how the best
    settings of a public search are run on the private records in the end.
    """
    from dpray import tracking

    search = with_words(search)
    search.check()
    if track:
        tracking.check_reachable()  # before anything is trained or charged, not after
    facts = check_data(search, say)
    final_facts = _facts_of_private(search, say)
    cost = cost_beforehand(search, facts, progress)
    say(f"note: {_said(cost)}")
    if folder is None:
        folder = make_search_folder(new_search_id(search), search)
    folder.write_json("cost.json", cost.to_json())
    with RunFolder(folder.path).held(say):
        try:
            best, trials = _search(
                folder, search, facts, final_facts, conduct=conduct, progress=progress
            )
            check_charges(folder, Journal(folder.private).finished(), cost)
            final = search.final_spec(best.draw, final_facts)
            folder.write_json("best.json", final.to_json())
            if search.charge == "public":
                result = _run_once(folder, final, cost, start, progress, say)
            else:
                result = publish(folder, search, best, cost, pool=pool, say=say)
            outcome = SearchOutcome(
                folder.search_id, search, cost, tuple(trials), result, final=final
            )
            return _recorded(folder, outcome, track=track, say=say)
        except KeyboardInterrupt:
            say(
                "warning: interrupted; no budget is lost, go on with: dpray tune --resume "
                f"{folder.search_id}"
            )
            raise


def _facts_of_private(search: SearchSpec, say: Say) -> DataFacts:
    """Of the private records as a whole: what the best settings will meet in the end."""
    spec = RunSpec(
        method=search.method,
        dataset=search.dataset,
        epsilon=search.epsilon,
        delta=search.delta,
        public=search.public,
        insist=search.insist,
    )
    return DataFacts.of(load_for(spec, check(spec), say).train)


def _search(
    folder: SearchFolder,
    search: SearchSpec,
    facts: DataFacts,
    final_facts: DataFacts,
    *,
    conduct: Callable[..., None],
    progress: Progress,
) -> tuple[Finished, list[Finished]]:
    journal = begin(folder, search)
    if not journal.is_complete:
        trials = Trials(
            folder,
            journal,
            facts,
            final_facts=final_facts if search.charge == "public" else None,
        )
        conduct(trials, progress=progress)
    best = journal.best()
    if best is None:
        raise NoTrialWorked(
            "no trial came to an end with a score: training diverged or failed in all of them; "
            "what was declared is charged, choose a narrower space before you search again"
        )
    return best, [] if search.charge == "select" else journal.finished()


def _run_once(
    folder: SearchFolder,
    final: RunSpec,
    cost: SearchCost,
    start: Callable[..., Result],
    progress: Progress,
    say: Say,
) -> Result:
    """The best settings of a public search on the private records; goes on where it was cut off."""
    begun = RunFolder(runs_folder() / folder.search_id)
    resume = (begun.path / "spec.json").exists()
    result = start(final, run_id=folder.search_id, progress=progress, say=say, resume=resume)
    return with_search_on_card(result, cost)


def _recorded(folder: SearchFolder, outcome: SearchOutcome, *, track: bool, say: Say) -> Tuned:
    from dpray import tracking

    assert outcome.best is not None
    draw_run(outcome.best)
    plots = draw_search(outcome, folder.path)
    model = None
    if track:
        try:
            model = tracking.record_search(outcome, plots=plots)
        except DprayError:
            say(
                "warning: the search is kept; record it later with: dpray tune --resume "
                f"{folder.search_id}"
            )
            raise
    folder.close(keep_trials=outcome.search.charge != "select")
    return Tuned(outcome, model, folder)


def _said(cost: SearchCost) -> str:
    if cost.how == "public":
        return "the search itself costs nothing; the best settings spend the budget once"
    if cost.how == "none":
        return f"nobody pays for this search: its result is not fit for release ({cost.reason})"
    return f"the whole search costs epsilon {cost.epsilon:.4g} at delta {cost.delta:g}"
