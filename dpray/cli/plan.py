"""`dpray plan`: what noise for this epsilon, what epsilon for this noise, before anything runs."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from dpray.cli import plan_search, plan_subsets
from dpray.cli.output import print_json, print_table, say
from dpray.errors import BadInput, BudgetExceeded
from dpray.privacy.accounting import Adjacency
from dpray.privacy.planning import Plan, solve

_EPILOG = """\
examples:
  dpray plan --records 60000 --batch-size 256 --epochs 15 --epsilon 1           the noise
  dpray plan --records 60000 --batch-size 256 --epochs 15 --noise-multiplier 1  the epsilon
  dpray plan --records 60000 --batch-size 256 --epsilon 1 --noise-multiplier 1  the most steps
  dpray plan --records 60000 --steps 3000 --epsilon 1 --noise-multiplier 1      the largest batch
  dpray plan --subsets 2500 --epsilon 10             ways to draw subsets of the records
  dpray plan --search --records 60000 --batch-size 256 --epochs 15 --epsilon 1  a search's cost

Batches are Poisson samples; shuffled batches of a fixed size cost far more than this says.
"""
_EPOCHS = (1, 2, 5, 10, 20, 50, 100)


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "plan",
        description="Solve for the one of noise, steps, batch size and epsilon you leave out.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--records", type=int, metavar="N", help="required without --subsets")
    parser.add_argument("--batch-size", type=float, metavar="B", help="expected size")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--steps", type=int, metavar="T")
    length.add_argument("--epochs", type=float, metavar="E")
    parser.add_argument("--epsilon", type=float)
    parser.add_argument("--noise-multiplier", type=float, metavar="Z")
    parser.add_argument("--delta", type=float, default=1e-5, help="default 1e-5")
    parser.add_argument(
        "--adjacency",
        choices=[a.value for a in Adjacency],
        default=Adjacency.ADD_REMOVE.value,
        help="which datasets are neighbours",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    plan_subsets.add_arguments(parser)
    plan_search.add_arguments(parser)
    parser.set_defaults(handler=partial(_plan, parser))


def _plan(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    plan_search.check(args)
    if args.subsets is not None:
        plan_subsets.check(args)
        _check_delta(args)
        return plan_subsets.show(args)
    if args.records is None:
        parser.error("the following arguments are required: --records")
    plan_subsets.refuse_without_subsets(args)
    rate = _sample_rate(args)
    steps = args.steps
    if args.epochs is not None:
        if rate is None or not 0 < args.epochs < 1e6:
            raise BadInput("--epochs needs --batch-size, and must be above 0 and below a million")
        steps = max(1, round(args.epochs / rate))
    _check_delta(args)
    adjacency = Adjacency(args.adjacency)
    plan = solve(
        delta=args.delta,
        noise_multiplier=args.noise_multiplier,
        sample_rate=rate,
        steps=steps,
        epsilon=args.epsilon,
        adjacency=adjacency,
    )
    if args.search:
        return plan_search.show(plan, adjacency, as_json=args.json)
    if args.json:
        print_json(
            {
                "epsilon": plan.epsilon,
                "delta": plan.delta,
                "noise_multiplier": plan.noise_multiplier,
                "steps": plan.steps,
                "sample_rate": plan.sample_rate,
                "epsilon_by_accountant": plan.cost.by_accountant(),
            }
        )
        return 0
    _print(plan, args, adjacency)
    return 0


def _check_delta(args: argparse.Namespace) -> None:
    if not 0 < args.delta < 1:
        raise BadInput(f"delta {args.delta:g} is out of range: it must be between 0 and 1")
    if args.records is None:
        return
    _check_records(args)
    if args.delta > 1 / args.records:
        say(f"warning: delta {args.delta:g} is above 1/N = {1 / args.records:.3g}")


def _check_records(args: argparse.Namespace) -> None:
    if args.records < 1:
        raise BadInput(f"--records {args.records} is out of range: it must be at least 1")


def _sample_rate(args: argparse.Namespace) -> float | None:
    _check_records(args)
    if args.batch_size is None:
        return None
    if not 0 < args.batch_size <= args.records:
        raise BadInput(
            f"--batch-size {args.batch_size:g} is out of range: above 0, at most {args.records}"
        )
    return float(args.batch_size) / args.records


def _print(plan: Plan, args: argparse.Namespace, adjacency: Adjacency) -> None:
    epochs = plan.steps * plan.sample_rate
    print(f"epsilon           {plan.epsilon:.4f} at delta {plan.delta:g}, {adjacency.value}")
    print(f"noise multiplier  {plan.noise_multiplier:.4f}")
    print(f"steps             {plan.steps} ({epochs:.3g} epochs)")
    print(f"sample rate       {plan.sample_rate:.6g} (batch {plan.sample_rate * args.records:.4g})")
    for name, value in plan.cost.by_accountant().items():
        if value is not None:
            print(f"  by {name:<14} {value:.4f}")
    print()
    fixed_epsilon = args.epsilon is not None
    column = f"noise for epsilon {args.epsilon:g}" if fixed_epsilon else "epsilon at this noise"
    rows = []
    for count in _EPOCHS:
        steps = max(1, round(count / plan.sample_rate))
        try:
            other = solve(
                delta=plan.delta,
                noise_multiplier=None if fixed_epsilon else plan.noise_multiplier,
                sample_rate=plan.sample_rate,
                steps=steps,
                epsilon=args.epsilon if fixed_epsilon else None,
                adjacency=adjacency,
            )
        except BudgetExceeded:
            continue
        rows.append((count, steps, other.noise_multiplier if fixed_epsilon else other.epsilon))
    print_table(("epochs", "steps", column), rows)
