"""`dpray plan --search`: what it costs to choose among trials, by how it is done."""

from __future__ import annotations

import argparse
import math
import textwrap
from dataclasses import dataclass

import dp_accounting as dp

from dpray.cli.output import print_json, print_table
from dpray.errors import BadInput
from dpray.privacy.accounting import LARGEST_SENSIBLE_EPSILON, Adjacency
from dpray.privacy.planning import Plan
from dpray.privacy.queries import PoissonGradients
from dpray.privacy.selection import TrialLaw, cost_of_composition, cost_of_selection
from dpray.progress import silent, terminal

_TRIALS = (1, 5, 10, 20, 40, 100)
_LAWS = {"logarithmic": TrialLaw.logarithmic, "geometric": TrialLaw.geometric}

_NOTES = (
    "public: trials see public records or synthetic ones that were released before. select: "
    "settings are drawn at random, the number of trials is drawn in secret with this mean, and "
    "only the best trial is ever seen. compose: any search, every trial may be seen and every one "
    "is charged. none: a search on private records that nobody charges.",
    "A logarithmic number of trials costs the least and is often 1: in a fifth of all searches "
    "with mean 20. A noisy score on private records that were held out of the training adds "
    "nothing where its delta is at no epsilon above that of the training.",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "searches over hyperparameters",
        "Trying settings on private records and keeping the best is itself a look at them, and "
        "costs. Keeping only the best of a secret, random number of trials costs about twice one "
        "trial, publishing every trial far more, and a search on public records nothing.",
    )
    group.add_argument(
        "--search",
        action="store_true",
        help="epsilon of whole searches whose trials each cost what the other options say",
    )


def check(args: argparse.Namespace) -> None:
    if args.search and args.subsets is not None:
        raise BadInput("--search does not go with --subsets: it plans trials of Poisson batches")


@dataclass(frozen=True)
class Mode:
    """One way to search; an epsilon for each number of trials, None where none covers it."""

    mode: str
    law: str | None
    epsilons: list[float | None]

    @property
    def releasable(self) -> bool:
        return None not in self.epsilons


def show(plan: Plan, adjacency: Adjacency, *, as_json: bool) -> int:
    modes = _modes(plan, adjacency, quiet=as_json)
    if as_json:
        print_json(
            {
                "trial": {
                    "epsilon": plan.epsilon,
                    "noise_multiplier": plan.noise_multiplier,
                    "steps": plan.steps,
                    "sample_rate": plan.sample_rate,
                },
                "delta": plan.delta,
                "adjacency": adjacency.value,
                "trials": list(_TRIALS),
                "modes": [_facts(mode) for mode in modes],
            }
        )
        return 0
    print(
        f"one trial: epsilon {plan.epsilon:.4f}, noise multiplier {plan.noise_multiplier:.4f}, "
        f"{plan.steps} steps, sample rate {plan.sample_rate:.6g}"
    )
    print(f"epsilon of the whole search at delta {plan.delta:g}, {adjacency.value}, by trials:\n")
    print_table(("mode", *map(str, _TRIALS)), [_row(mode) for mode in modes])
    for note in _NOTES:
        print("\n" + textwrap.fill(note, 92))
    return 0


def _modes(plan: Plan, adjacency: Adjacency, *, quiet: bool) -> list[Mode]:
    event = _event(plan)
    # A single trial is no search: it costs what the plan says.
    select: dict[str, list[float | None]] = {name: [plan.epsilon] for name in _LAWS}
    compose: list[float | None] = [plan.epsilon]
    progress = silent if quiet else terminal
    with progress("numbers of trials", len(_TRIALS) - 1) as bar:
        for trials in _TRIALS[1:]:
            for name, law in _LAWS.items():
                kept = cost_of_selection(event, law(trials), plan.delta, adjacency=adjacency)
                select[name].append(kept.epsilon)
            every = cost_of_composition(event, trials, plan.delta, adjacency=adjacency)
            compose.append(every.epsilon)
            bar.advance()
    return [
        Mode("public", None, [0.0] * len(_TRIALS)),
        *(Mode("select", name, epsilons) for name, epsilons in select.items()),
        Mode("compose", None, compose),
        Mode("none", None, [None] * len(_TRIALS)),
    ]


def _event(plan: Plan) -> dp.DpEvent:
    return PoissonGradients(
        sample_rate=plan.sample_rate,
        steps=plan.steps,
        clip_norm=1.0,
        noise_multiplier=plan.noise_multiplier,
        expected_batch_size=1.0,
    ).event


def _facts(mode: Mode) -> dict[str, object]:
    finite = [e if e is not None and math.isfinite(e) else None for e in mode.epsilons]
    return {
        "mode": mode.mode,
        "law": mode.law,
        "epsilon": finite,
        "releasable": mode.releasable,
    }


def _row(mode: Mode) -> list[str]:
    name = f"{mode.mode} ({mode.law})" if mode.law else mode.mode
    if not mode.releasable:
        return [f"{name}: not releasable", *("-" for _ in _TRIALS)]
    return [name, *(_said(epsilon) for epsilon in mode.epsilons)]


def _said(epsilon: float | None) -> str:
    assert epsilon is not None
    return f"{epsilon:.3f}" if epsilon <= LARGEST_SENSIBLE_EPSILON else f"{epsilon:.1f}"
