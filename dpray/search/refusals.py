"""What is wrong with a search, said in one line before anything is loaded, read or charged."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

from dpray import methods
from dpray.data.datasets import BUILT_IN, load_whole
from dpray.data.sources import Say
from dpray.data.words import PARTS, DatasetWord
from dpray.errors import BadInput, unknown
from dpray.evaluation.downstream import CLASSIFIERS
from dpray.execute import check, load_for
from dpray.privacy.accounting import Adjacency
from dpray.search.budgets import DataFacts, keys_that_move_the_cost
from dpray.search.modes import Law, Sampler, Scheduler
from dpray.search.space import NOISE, all_values, check_space, typical_values
from dpray.spec import RunSpec, check_settings

if TYPE_CHECKING:
    from dpray.search.trials import SearchSpec

_CHOICES = {"law": get_args(Law), "sampler": get_args(Sampler), "scheduler": get_args(Scheduler)}
_CHARGES = {
    "public": "trials read --proxy and cost nothing",
    "select": "the best of a secret number of trials",
    "compose": "every trial is paid",
    "none": "not fit for release",
}
_MOST_LOOKS = 8
_MOST_COSTS = 256  # combinations of settings whose cost is computed before a search


def check_search(search: SearchSpec) -> type[Any]:
    """The method of a search that may start."""
    if search.charge not in _CHARGES:
        known = "; ".join(f"{name} ({meaning})" for name, meaning in _CHARGES.items())
        said = f"no charge {search.charge!r}" if search.charge else "say who pays for the trials"
        raise BadInput(f"{said}: --charge has no default; choose from: {known}")
    for name, choices in _CHOICES.items():
        value = getattr(search, name)
        if value not in choices and not (name == "law" and value is None):
            raise unknown(name, str(value), choices)
    _check_numbers(search)
    kind: type[Any] = methods.find(search.method)
    check_space(search.space, kind)
    check_settings(search.settings, kind)
    _refuse_contradictions(search)
    _check_words(search, kind)
    _check_score(search, kind)
    _check_charge(search, kind)
    check(_trial_without_draw(search))
    return kind


def check_data(search: SearchSpec, say: Say) -> DataFacts:
    """Loads what trials will read, refuses what cannot work there, and tells its public facts.

    Nothing is charged, and no record is looked at but to tell two datasets apart.
    """
    spec = _trial_without_draw(search)
    data = load_for(spec, check(spec), say).train
    if search.charge == "public":
        _refuse_the_same_records(search, say)
    kind = methods.find(search.method)
    kind(**spec.settings).check(data)
    for name, dimension in search.space.items():
        for value in typical_values(dimension) if name != NOISE else ():
            kind(**check_settings({**spec.settings, name: value}, kind)).check(data)
    return DataFacts.of(data)


def _trial_without_draw(search: SearchSpec) -> RunSpec:
    dataset, public = search.words()
    return RunSpec(
        method=search.method,
        dataset=dataset,
        epsilon=search.epsilon,
        delta=search.delta,
        seed=search.seed,
        settings=check_settings(search.settings, methods.find(search.method)),
        adjacency=search.adjacency,
        insist=search.insist,
        public=public,
    )


def _check_numbers(search: SearchSpec) -> None:
    for name in ("trials", "least_steps", "most_steps", "score_images", "cap"):
        value = getattr(search, name)
        if name == "cap" and value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise BadInput(f"{name} {value!r} is out of range: a whole number, at least 1")
    if search.charge == "select":
        _ = search.trial_law.mean  # refuses a mean that is out of range
    for name in ("law", "cap"):
        if search.charge != "select" and getattr(search, name) is not None:
            raise BadInput(
                f"--{name} goes with --charge select, where the number of trials is drawn; with "
                f"--charge {search.charge} it is what --trials says"
            )


def _check_score(search: SearchSpec, kind: type[Any]) -> None:
    if search.score not in CLASSIFIERS:
        raise unknown("classifier to score with", search.score, CLASSIFIERS)
    if search.scheduler == "none":
        return
    if not isinstance(search.looks, int) or not 2 <= search.looks <= _MOST_LOOKS:
        raise BadInput(
            f"{search.looks} looks are out of range: a scheduler needs 2 to {_MOST_LOOKS}, the "
            "last at the end"
        )
    method = kind(**check_settings(search.settings, kind))
    if not getattr(method, "can_be_looked_at", False):
        raise BadInput(
            f"{search.method} has nothing to score before its end: --scheduler "
            f"{search.scheduler} does not go with it; use --scheduler none"
        )


def _refuse_contradictions(search: SearchSpec) -> None:
    for name in search.space:
        if name in search.settings:
            raise BadInput(
                f"{name}={search.settings[name]} is fixed and the space searches over {name}: "
                "leave one of the two out"
            )
    if NOISE not in search.space:
        return
    for name in ("steps", "epochs"):
        if name in search.space or search.settings.get(name) is not None:
            where = "in the space" if name in search.space else "fixed"
            raise BadInput(
                f"{name} is {where} and the space searches over {NOISE}: at one budget one follows "
                "from the other; leave one of the two out"
            )
    if search.settings.get("class_model") == "noisy-statistics":
        raise BadInput(
            "class_model=noisy-statistics pays for statistics as well, so steps do not follow from "
            f"{NOISE}: leave that out of the space"
        )


def _check_words(search: SearchSpec, kind: type[Any]) -> None:
    if DatasetWord.parse(search.dataset).tuning:
        raise BadInput(f"{search.dataset}: trials are cut to @tuning by the search; leave it out")
    reads_public_data = getattr(kind, "public_data", None) is not None
    if reads_public_data and search.public is None:
        raise BadInput(
            f"{search.method} reads public data beside the private ones: give --public, a class "
            "list such as 1,3,5 or a dataset such as fashion-mnist"
        )
    if search.charge != "public":
        if search.proxy is not None:
            raise BadInput(
                f"--proxy {search.proxy} goes with --charge public; with --charge "
                f"{search.charge} trials read {search.dataset} itself"
            )
        return
    if search.proxy is None:
        raise BadInput(
            "--charge public needs --proxy: a public dataset, or synthetic images that were "
            f"released before, for trials to read instead of {search.dataset}"
        )
    private = DatasetWord.parse(search.dataset)
    for word in _proxy_words(search, reads_public_data):
        if _may_share_records(private, word):
            what = "is the private dataset itself" if word == private else "may hold its records"
            raise BadInput(
                f"the proxy {word} {what}, {search.dataset}: what trials read must be public; name "
                "other data, or --charge select"
            )


def _proxy_words(search: SearchSpec, reads_public_data: bool) -> Iterator[DatasetWord]:
    """All that a trial on the proxy reads."""
    words = [DatasetWord.parse(word) for word in search.words() if word is not None]
    yield from words
    if reads_public_data and words[0].part == "rest":
        yield replace(words[0], part="labelling")


def _may_share_records(one: DatasetWord, other: DatasetWord) -> bool:
    if _place(one.base) != _place(other.base) or {one.part, other.part} == set(PARTS):
        return False
    return None in (one.classes, other.classes) or bool(
        set(one.classes or ()) & set(other.classes or ())
    )


def _place(base: str) -> str:
    return base if base in BUILT_IN else os.path.realpath(os.path.expanduser(base))


def _refuse_the_same_records(search: SearchSpec, say: Say) -> None:
    """Two names for the same file: what the words alone do not tell."""
    private = DatasetWord.parse(search.dataset).base
    own = load_whole(private, say=say).train.fingerprint
    for word in map(DatasetWord.parse, filter(None, search.words())):
        same = _place(word.base) == _place(private)
        if not same and load_whole(word.base, say=say).train.fingerprint == own:
            raise BadInput(
                f"the proxy {word.base} is the private dataset itself under another name, "
                f"{private}; name other data, or --charge select"
            )


def _check_charge(search: SearchSpec, kind: type[Any]) -> None:
    """Which searches a charge covers."""
    if kind.private and search.epsilon is None:
        raise BadInput(f"a search with {search.method} needs --epsilon: every trial spends it")
    if search.charge == "public":
        return
    where = f"--charge {search.charge}"
    if getattr(kind, "needs_public_test", False):
        raise BadInput(
            f"{search.method} is measured again and again, which a private score cannot be: "
            f"{where} does not go with it; use --charge public"
        )
    if search.adjacency is Adjacency.REPLACE:
        raise BadInput(
            f"{where} scores trials on records that are held out, and with replace-one neighbours "
            "a record may move there; use add-or-remove-one"
        )
    if search.charge == "none":
        return
    if not kind.private:
        raise BadInput(
            f"{search.method} adds no noise, so no charge covers its trials; use --charge public, "
            "or --charge none to explore"
        )
    if search.charge == "select":
        _refuse_what_compares(search)
    _check_costs_are_countable(search, kind)


def _refuse_what_compares(search: SearchSpec) -> None:
    if search.sampler != "random":
        raise BadInput(
            f"--sampler {search.sampler} chooses settings by the scores of earlier trials, and "
            "--charge select covers independent draws alone; use --sampler random or --charge "
            "compose"
        )
    if search.scheduler != "none":
        raise BadInput(
            f"--scheduler {search.scheduler} stops a trial by the scores of others, and --charge "
            "select covers trials that know nothing of each other; use --scheduler none or "
            "--charge compose"
        )


def _check_costs_are_countable(search: SearchSpec, kind: type[Any]) -> None:
    """Trials at one epsilon and delta can still cost differently once they are many.

    The bounds on a search need the costliest of them, so all must be known beforehand.
    """
    moving = keys_that_move_the_cost(search.space, kind)
    for name in moving:
        if all_values(search.space[name]) is None:
            raise BadInput(
                f"{name} moves what a trial costs, and with --charge {search.charge} every cost "
                f"must be known beforehand: search over a choice of values, as in {name}: "
                "choice(1, 2, 4)"
            )
    count = math.prod(len(all_values(search.space[name]) or ()) for name in moving)
    if count > _MOST_COSTS:
        raise BadInput(
            f"{', '.join(moving)} can be drawn in {count:,} ways, and with --charge "
            f"{search.charge} the cost of each is computed beforehand: at most {_MOST_COSTS}"
        )
