"""`dpray plan --subsets`: ways to draw subsets of the records, side by side."""

from __future__ import annotations

import argparse
import math
import textwrap
from collections.abc import Sequence
from typing import Any, get_args

from dpray.cli.output import print_json, print_table
from dpray.errors import BadInput
from dpray.privacy.subset_planning import (
    FEWEST_STEPS,
    GRADIENTS_IN_ALL,
    MOST_STEPS,
    SubsetPlan,
    default_steps,
    plan_subsets,
    subset_choices,
)
from dpray.privacy.subset_queries import SubsetSampling
from dpray.progress import silent, terminal
from dpray.stacks.states import STATES

_RANGES = {"subsets": (2, 10**9), "steps": (1, 10**7), "parameters": (1, 10**12)}
_ONLY_HERE = ("subsets_per_step", "sampling", "encoder_state", "parameters")
_NOT_HERE = ("batch_size", "epochs")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "methods that draw subsets of the records (dp2-vae)",
        "With --subsets and either --epsilon or --noise-multiplier: one row for each way to draw.",
    )
    group.add_argument("--subsets", type=int, metavar="K", help="how many there are")
    group.add_argument(
        "--subsets-per-step", type=float, metavar="M", help="on average; only this many"
    )
    group.add_argument("--sampling", choices=get_args(SubsetSampling), help="only this way")
    group.add_argument(
        "--encoder-state",
        choices=list(STATES),
        help="what happens to encoders between draws; default ephemeral. Trained when selected, "
        "they remember the draws, which costs more",
    )
    group.add_argument(
        "--parameters", type=int, metavar="D", help="of the decoder: adds the signal of one step"
    )


def refuse_without_subsets(args: argparse.Namespace) -> None:
    for name in _ONLY_HERE:
        if getattr(args, name) is not None:
            raise BadInput(f"{_flag(name)} goes with --subsets, which is not given")


def check(args: argparse.Namespace) -> None:
    """Refuses what makes no sense, before anything is computed or printed."""
    for name in _NOT_HERE:
        if getattr(args, name) is not None:
            raise BadInput(f"{_flag(name)} does not go with --subsets; use --subsets-per-step")
    for name, (least, most) in _RANGES.items():
        value = getattr(args, name)
        if value is not None and not least <= value <= most:
            raise BadInput(f"{_flag(name)} {value} is out of range: from {least} to {most}")
    if (args.epsilon is None) == (args.noise_multiplier is None):
        raise BadInput("--subsets needs one of --epsilon and --noise-multiplier, not both")
    if args.epsilon is not None and not 0 < args.epsilon < math.inf:
        raise BadInput(f"--epsilon {args.epsilon:g} is out of range: finite and above 0")
    noise = args.noise_multiplier
    if noise is not None and not 0.01 <= noise < math.inf:
        raise BadInput(f"--noise-multiplier {noise:g} is out of range: finite, at least 0.01")
    _check_draws(args)


def _check_draws(args: argparse.Namespace) -> None:
    count = args.subsets_per_step
    if count is None:
        return
    if not 0 < count <= args.subsets:
        raise BadInput(
            f"--subsets-per-step {count:g} is out of range: above 0, at most {args.subsets}"
        )
    fixed = {"one-of-k": 1, "all-subsets": args.subsets}.get(args.sampling, count)
    if count != fixed:
        raise BadInput(
            f"--subsets-per-step {count:g} does not go with --sampling {args.sampling}, which "
            f"draws {fixed}; use poisson for another number"
        )


def show(args: argparse.Namespace) -> int:
    state = args.encoder_state or "ephemeral"
    choices = subset_choices(
        args.subsets, sampling=args.sampling, subsets_per_step=args.subsets_per_step
    )
    plans = []
    progress = terminal if len(choices) > 1 else silent
    with progress("ways to draw", len(choices)) as bar:
        for sampling, count in choices:
            plan = plan_subsets(
                num_subsets=args.subsets,
                sampling=sampling,
                subsets_per_step=count,
                steps=args.steps or default_steps(count),
                remembers_draws=STATES[state].remembers_draws,
                delta=args.delta,
                epsilon=args.epsilon,
                noise_multiplier=args.noise_multiplier,
            )
            plans.append(plan)
            bar.advance()
    if args.json:
        print_json(
            {
                "num_subsets": args.subsets,
                "delta": args.delta,
                "encoder_state": state,
                "choices": [_facts(plan, args.parameters) for plan in plans],
            }
        )
        return 0
    print(
        f"{args.subsets} subsets, delta {args.delta:g}, encoder state {state}; neighbours differ "
        "in one record, added, removed or replaced\n"
    )
    _print_table(plans, args.parameters)
    for note in _notes(plans, args, state):
        print("\n" + textwrap.fill(note, 92))
    return 0


def _facts(plan: SubsetPlan, num_parameters: int | None) -> dict[str, Any]:
    query = plan.query
    facts = {
        "sampling": query.sampling,
        "subsets_per_step": query.subsets_per_step,
        "sample_rate": query.sample_rate,
        "steps": query.steps,
        "noise_multiplier": query.noise_multiplier,
        "epsilon": plan.epsilon if math.isfinite(plan.epsilon) else None,
        "accumulated_signal_over_noise": plan.accumulated_signal,
    }
    if num_parameters is not None:
        facts["step_signal_over_noise"] = plan.step_signal(num_parameters)
    return facts


def _print_table(plans: Sequence[SubsetPlan], num_parameters: int | None) -> None:
    header = [
        *("sampling", "subsets a step", "sample rate", "steps", "noise multiplier", "epsilon"),
        "accumulated signal/noise",
    ]
    if num_parameters is not None:
        header.append("signal/noise of a step")
    print_table(header, [tuple(_facts(plan, num_parameters).values()) for plan in plans])


def _notes(plans: Sequence[SubsetPlan], args: argparse.Namespace, state: str) -> list[str]:
    notes = ["Accumulated signal over noise is sqrt(steps) * subsets a step / noise multiplier."]
    if args.steps is None:
        notes[0] += (
            f" The steps make about {GRADIENTS_IN_ALL} subset gradients in all, but are at least "
            f"{FEWEST_STEPS} and at most {MOST_STEPS}; --steps sets them for every row."
        )
    if len(plans) > 1:
        notes.append(_comparison(plans, args.epsilon is not None))
    if any(plan.query.sample_rate < 1 for plan in plans):
        notes.append(_about_memory(state))
    return [note for note in notes if note]


def _comparison(plans: Sequence[SubsetPlan], same_epsilon: bool) -> str:
    if not same_epsilon:
        return (
            "More subsets a step bring more signal and cost more epsilon; give --epsilon instead "
            "to compare signals at one price."
        )
    ones = [plan.accumulated_signal for plan in plans if plan.query.subsets_per_step == 1]
    best = max(plan.accumulated_signal for plan in plans)
    if not ones or best < 1.5 * max(ones):
        return ""
    enough = next(plan for plan in plans if plan.accumulated_signal >= 0.9 * best)
    gains = {p.query.subsets_per_step: p.accumulated_signal for p in (enough, plans[-1])}
    said = " and ".join(
        f"{count:g} a step bring {signal / max(ones):.2g} times" for count, signal in gains.items()
    )
    return (
        f"One subset a step drowns in noise: at the same epsilon {said} its signal, because "
        "drawing fewer loses more signal than it saves noise."
    )


def _about_memory(state: str) -> str:
    if state == "selected":
        return (
            "Encoders that are trained only when selected, as in the paper, remember the draws. "
            "What they give later may tell them, so the draws hide nothing and are charged as if "
            "they were published. Other encoder states, and all-subsets, need not pay for that."
        )
    return (
        "The draws must stay secret. Encoders that are trained only when selected, as in the "
        "paper, would remember them and are charged as if the draws were published: see "
        "--encoder-state selected."
    )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
