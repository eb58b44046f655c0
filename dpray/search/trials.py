"""`SearchSpec`: what to search, as one frozen value that goes to JSON and back.

It holds the space itself, so it says all by itself, and it turns a draw into the `RunSpec` of a
trial. Every trial has the same budget. A trial reads the private records under the part `tuning`,
so the real test set is out of its reach; with `charge` public it reads the proxy instead.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpray import methods
from dpray.data.datasets import BUILT_IN
from dpray.data.public import choose_words
from dpray.data.words import DatasetWord
from dpray.errors import BadInput, unknown
from dpray.privacy.accounting import Adjacency, Budget
from dpray.privacy.noise import RunKey
from dpray.privacy.selection import TrialLaw
from dpray.search.budgets import (
    LEAST_STEPS,
    MOST_STEPS,
    CannotMeetBudget,
    DataFacts,
    settings_with_steps,
    steps_for,
)
from dpray.search.modes import Charge, Law, Sampler, Scheduler
from dpray.search.refusals import check_search
from dpray.search.space import NOISE, Draw, Space, draw, space_from_json, space_to_json
from dpray.spec import RunSpec, check_settings

_LAWS = {"geometric": TrialLaw.geometric, "logarithmic": TrialLaw.logarithmic}
_MOST_REJECTED = 1000  # draws in a row before a space is said not to fit its budget


@dataclass(frozen=True, kw_only=True)
class SearchSpec:
    method: str
    dataset: str
    charge: Charge  # who pays for the looks at private records; there is no default
    trials: int  # declared and all made; with `select` the mean of their secret number
    space: Space
    epsilon: float | None = None  # of one trial, its training and its score alike
    delta: float = 1e-5  # of one trial, and of the whole search
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)  # fixed for all trials
    public: str | None = None
    adjacency: Adjacency = Adjacency.ADD_REMOVE
    insist: bool = False
    law: Law | None = None  # with `select` alone: of the number of trials; None there: geometric
    cap: int | None = None  # with `select` alone: None: as large as costs nothing
    sampler: Sampler = "random"
    scheduler: Scheduler = "none"
    proxy: str | None = None  # with `public` alone: what trials read instead of the dataset
    score: str = "mlp"  # the classifier by which a trial's synthetic images are scored
    score_images: int = 20_000  # how many of them, at most
    looks: int = 4  # with a scheduler: how often a trial is scored on its way, its end included
    least_steps: int = LEAST_STEPS  # of a trial whose noise was drawn: fewer are not tried
    most_steps: int = MOST_STEPS

    def check(self) -> type[Any]:
        """The method, or the one line a user should see. Nothing is loaded and nothing charged."""
        return check_search(self)

    @property
    def budget(self) -> Budget:
        """Of one trial."""
        if self.epsilon is None:
            raise BadInput("the trials of this search have no budget: give --epsilon")
        return Budget(self.epsilon, self.delta)

    @property
    def trial_law(self) -> TrialLaw:
        return _LAWS[self.law or "geometric"](self.trials)

    def number_of_trials(self, key: RunKey) -> int:
        """How many trials are made. With `select` that is a secret: nobody but the journal has it.

        Guarantee: drawn from the law by the secret key alone, once for each key.
        """
        if self.charge != "select":
            return self.trials
        return self.trial_law.draw(key, cap=self.cap)

    def words(self) -> tuple[str, str | None]:
        """The dataset word of every trial, and that of the public data beside it."""
        if self.charge != "public":
            return str(replace(DatasetWord.parse(self.dataset), tuning=True)), self.public
        assert self.proxy is not None
        how = getattr(methods.find(self.method), "public_data", None)
        if how is None:
            return self.proxy, None
        base = DatasetWord.parse(self.proxy).base
        if base in BUILT_IN and base != DatasetWord.parse(self.dataset).base:
            return choose_words(self.proxy, None, how)
        return self.proxy, self.public  # what is public beside the private records stays so

    def trial_spec(self, drawn: Mapping[str, Any], facts: DataFacts) -> RunSpec:
        """The run that a draw means, on records of which `facts` are public.

        Nothing in it says which trial it is, for the number of the best one would tell how many
        there were. Raises `CannotMeetBudget` where the draw does not fit, before anything starts.
        """
        dataset, public = self.words()
        return self._spec(dataset, public, drawn, facts)

    def final_spec(self, drawn: Mapping[str, Any], facts: DataFacts) -> RunSpec:
        """The run of the best draw on all private records; its budget is spent on top.

        For `charge` public, where no trial has seen them. Else the best trial is the release.
        """
        return self._spec(self.dataset, self.public, drawn, facts)

    def _spec(
        self, dataset: str, public: str | None, drawn: Mapping[str, Any], facts: DataFacts
    ) -> RunSpec:
        kind = methods.find(self.method)
        settings = {**self.settings, **drawn}
        noise = settings.pop(NOISE, None)
        settings = check_settings(settings, kind)
        if noise is not None:
            method = kind(**settings)
            steps = steps_for(
                method,
                facts,
                noise,
                self.budget,
                least_steps=self.least_steps,
                most_steps=self.most_steps,
                adjacency=self.adjacency,
            )
            settings |= settings_with_steps(method, facts, steps)
        return RunSpec(
            method=self.method,
            dataset=dataset,
            epsilon=self.epsilon,
            delta=self.delta,
            seed=self.seed,
            settings=settings,
            adjacency=self.adjacency,
            insist=self.insist,
            public=public,
        )

    def refuse_misfit(
        self, drawn: Mapping[str, Any], facts: DataFacts, final_facts: DataFacts | None = None
    ) -> None:
        """Raises `CannotMeetBudget` for a draw of which no trial, or no final run, can be made.

        `final_facts` are those of the private records, where trials read others.
        """
        self.trial_spec(drawn, facts)
        if final_facts is not None:
            self.final_spec(drawn, final_facts)

    def draw_that_fits(
        self,
        facts: DataFacts,
        rng: np.random.Generator,
        final_facts: DataFacts | None = None,
    ) -> Draw:
        """Draws until one meets the budget.

        Guarantee: a rejection looks at public numbers alone, so what comes out is an independent
        draw from a public law: that of the space, given that the budget is met.
        """
        for _ in range(_MOST_REJECTED):
            drawn = draw(self.space, rng)
            try:
                self.refuse_misfit(drawn, facts, final_facts)
            except CannotMeetBudget as error:
                refusal = error
            else:
                return drawn
        raise CannotMeetBudget(f"{_MOST_REJECTED} draws and none meets the budget; {refusal}")

    def to_json(self) -> dict[str, Any]:
        value = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {
            **value,
            "space": space_to_json(self.space),
            "settings": dict(self.settings),
            "adjacency": self.adjacency.value,
        }

    @classmethod
    def from_json(cls, value: Any) -> SearchSpec:
        if not isinstance(value, dict):
            raise BadInput("a search is a JSON object with at least method, dataset and space")
        known = {f.name for f in dataclasses.fields(cls)}
        for name in value:
            if name not in known:
                raise unknown("field of a search", name, known)
        values = {**value, "space": space_from_json(value.get("space"))}
        try:
            if "adjacency" in values:
                values["adjacency"] = Adjacency(values["adjacency"])
            return cls(**values)
        except ValueError:
            raise unknown("adjacency", str(values["adjacency"]), list(Adjacency)) from None
        except TypeError as error:
            raise BadInput(f"the search is incomplete: {error}") from None

    @classmethod
    def read(cls, path: Path) -> SearchSpec:
        try:
            return cls.from_json(json.loads(path.read_text()))
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"cannot read the search {path}: {error}") from None
        except json.JSONDecodeError as error:
            raise BadInput(f"{path} is not JSON: {error}") from None


def trial_rng(key: RunKey, number: int) -> np.random.Generator:
    """Where trial `number` draws its settings from: the same after a crash.

    Guarantee: a function of the secret key. Draws that others could repeat would tell, by the
    settings of the best trial, which trial it was.
    """
    bits = key.uniform_bits("settings", number, torch.arange(4))
    return np.random.default_rng([int(word) for word in bits])
