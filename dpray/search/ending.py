"""The best trial leaves its search: as a run like any other, with a card of the whole search."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from dpray.contract import Classifier, Release, Synthesizer
from dpray.data.datasets import load
from dpray.data.records import Dataset
from dpray.evaluation.metrics import Metric, Source
from dpray.evaluation.suite import measure_classifier, measure_images, suite_of_run
from dpray.evaluation.synthetic import draw, num_images
from dpray.execute import Result, read_result, write_result
from dpray.pool import Pool, SerialPool
from dpray.privacy.card import Card, card_of_search, verify
from dpray.privacy.ledger import ledger_from_json
from dpray.runs import RunFolder, make_folder, runs_folder
from dpray.search.conduct import SCORE
from dpray.search.cost import SearchCost
from dpray.search.folder import SearchFolder
from dpray.search.journal import Finished
from dpray.search.trials import SearchSpec

Say = Callable[[str], None]
CORE_SECONDS, EPSILON = "core_seconds", "epsilon"


def publish(
    folder: SearchFolder,
    search: SearchSpec,
    best: Finished,
    cost: SearchCost,
    *,
    pool: Pool | None = None,
    say: Say = lambda text: None,
) -> Result:
    """The best trial as run `runs/<id of the search>`; found there where it was made before.

    Guarantee: the release, the settings and the noisy score of the best trial leave, and its card
    is recomputed for the whole search. With `charge` select nothing tells which trial it was, how
    many there were or how long it took. What is measured on a test set that is public comes after
    the choice, so it had no part in it.
    """
    released = RunFolder(runs_folder() / folder.search_id)
    if released.is_finished:
        return read_result(released)
    trial = read_result(folder.trial(best.run_id))
    result = replace(
        trial,
        run_id=folder.search_id,
        spec=replace(trial.spec, dataset=search.dataset),
        metrics=_metrics(trial, search, cost, pool or SerialPool(), say),
        card=card_of_search(
            trial.card,
            run_id=folder.search_id,
            covers=cost.covers,
            searched=cost.searched,
            reason=cost.reason,
        ),
    )
    if cost.searched is not None:
        verify(result.card)  # that the trial was charged with what the search declared
    is_begun = (released.path / "spec.json").exists()
    result = replace(
        result, folder=released if is_begun else make_folder(folder.search_id, result.spec)
    )
    write_result(result)
    return result


def check_charges(folder: SearchFolder, trials: Iterable[Finished], cost: SearchCost) -> None:
    """Refuses a search of which a trial was charged with more than the search declared.

    The cost was computed from what trials would be charged with; this is what they were.
    """
    for one in trials:
        file = folder.trial(one.run_id).path / "card.json"
        if cost.searched is not None and file.exists():
            cost.searched.check_ledger(ledger_from_json(dict(Card.read(file).ledger)))


def with_search_on_card(result: Result, cost: SearchCost) -> Result:
    """A run whose settings a search on other data chose: its card says so."""
    card = card_of_search(
        result.card, run_id=result.run_id, covers=cost.covers, searched=None, reason=cost.reason
    )
    card.write(result.folder.path)
    return replace(result, card=card)


def _metrics(
    trial: Result, search: SearchSpec, cost: SearchCost, pool: Pool, say: Say
) -> tuple[Metric, ...]:
    score = Metric("search_score", trial.metric(SCORE), Source.NOISY_HOLD_OUT)
    kept = [metric for metric in trial.metrics if metric.name != EPSILON]
    if search.charge == "select":
        kept = [metric for metric in kept if metric.name != CORE_SECONDS]
    if cost.releasable:
        kept.append(Metric(EPSILON, cost.epsilon, Source.LEDGER))
    dataset = load(search.dataset, say=say)
    if dataset.test_is_public:
        measured = _on_public_test(trial.release, dataset, search.seed, pool, say)
        costs = [metric for metric in kept if metric.name in (EPSILON, CORE_SECONDS)]
        return (*measured, score, *costs)
    return (*kept, score)


def _on_public_test(
    release: Release, dataset: Dataset, seed: int, pool: Pool, say: Say
) -> list[Metric]:
    if isinstance(release, Synthesizer):
        images = draw(release, num_images(dataset.train.num_records), seed)
        suite = suite_of_run(release)
        return measure_images(images, dataset, suite, pool=pool, seed=seed, say=say)
    assert isinstance(release, Classifier)
    return [measure_classifier(release, dataset, reference="test")]
