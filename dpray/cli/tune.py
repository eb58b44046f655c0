"""`dpray tune`: search for settings at one budget, and say what the search itself costs."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_type_hints

import torch

from dpray.cli.output import hush, print_json, say
from dpray.contract import Classifier
from dpray.errors import BadInput
from dpray.execute import execute
from dpray.progress import silent, terminal
from dpray.search.conduct import run_here
from dpray.search.folder import open_search_folder
from dpray.search.modes import Charge, Law, Sampler, Scheduler
from dpray.search.space import load_space
from dpray.search.trials import SearchSpec
from dpray.spec import parse_settings, with_preset
from dpray.tuning import Tuned, tune

_EPILOG = """\
who pays for the trials (there is no default, for no answer suits everybody):
  --charge public   trials read --proxy, a public dataset or synthetic images that were released
                    before. The search costs nothing; the best settings are then run once on the
                    private records
  --charge select   settings are drawn at random, how many trials there are is drawn in secret with
                    mean --trials, and only the best one is ever seen. About twice one trial
  --charge compose  any sampler and scheduler, all trials may be seen, and every one of --trials is
                    charged, whether it ends or not
  --charge none     to explore. Nobody pays, and the result is not fit for release

Every trial spends the same (epsilon, delta) on its training records, and on a tenth of all records
that is held out for its noisy score. Where the space has noise_multiplier, the number of steps
follows from the budget; else the noise follows from the steps.

examples:
  dpray tune dp-sgd --dataset mnist --epsilon 1 --trials 40 --charge select
  dpray tune dp-sgd --dataset mnist --epsilon 1 --trials 40 --charge public --proxy fashion-mnist
  dpray tune dp-vae --dataset mnist --epsilon 1 --trials 20 --charge compose --sampler tpe \\
      --scheduler asha
  dpray tune --resume 20260101-120000-tune-dp-sgd-mnist-1f2e

`dpray plan --search` shows what searches cost, by mode and number of trials. The space comes from
tune_spaces/<method>.py, or from a file of yours that defines SPACE (--space).
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "tune",
        description="Search the settings of METHOD with Ray Tune and Optuna, every trial at the "
        "same budget, and end with one epsilon for the whole search.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("method", nargs="?", metavar="METHOD", help="see `dpray methods`")
    parser.add_argument("--dataset", metavar="D", help="the private records, as for `dpray run`")
    parser.add_argument("--public", metavar="D", help="public data beside them, as for `dpray run`")
    parser.add_argument("--epsilon", type=float, metavar="E", help="the budget of one trial")
    parser.add_argument("--delta", type=float, default=1e-5, help="of a trial and of the search")
    parser.add_argument("--trials", type=int, default=20, metavar="N", help="default 20")
    parser.add_argument("--charge", metavar="MODE", help=", ".join(get_args(Charge)) + ": below")
    parser.add_argument("--proxy", metavar="D", help="with --charge public: what trials read")
    parser.add_argument("--space", type=Path, metavar="FILE", help="a Python file with SPACE")
    parser.add_argument(
        "--set",
        dest="settings",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUE",
        help="settings that are the same in all trials",
    )
    parser.add_argument("--preset", metavar="NAME", help="fixed settings under a name; --set wins")
    parser.add_argument("--seed", type=int, default=0, help="of public choices; never of noise")
    parser.add_argument("--insist", action="store_true", help="allow an epsilon above 20")
    _add_search(parser)
    _add_where(parser)
    parser.add_argument("--resume", metavar="SEARCH_ID", help="go on with a search that stopped")
    parser.add_argument("--no-tracking", action="store_true", help="do not write to MLflow")
    parser.add_argument("--quiet", action="store_true", help="no progress bars and no notes")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(handler=_tune)


def _add_search(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how it searches")
    group.add_argument(
        "--sampler", default="random", metavar="S", help=f"{_listed(Sampler)}; default random"
    )
    group.add_argument(
        "--scheduler",
        default="none",
        metavar="S",
        help=f"{_listed(Scheduler)}: stops trials by their scores on the way; default none",
    )
    group.add_argument(
        "--looks",
        type=int,
        metavar="N",
        help="with a scheduler: how often a trial is scored, its end included; all share the "
        f"budget of its score; default {SearchSpec.looks}",
    )
    group.add_argument(
        "--law",
        metavar="L",
        help=f"with --charge select: {_listed(Law)}, of the number of trials; default geometric",
    )
    group.add_argument(
        "--cap", type=int, metavar="N", help="with --charge select: the most trials there may be"
    )
    group.add_argument(
        "--score",
        metavar="C",
        help="of a synthesizer: the classifier that scores its images (lr, mlp, cnn, ...); "
        f"default {SearchSpec.score}",
    )
    group.add_argument(
        "--score-images",
        type=int,
        metavar="N",
        help=f"how many images it is trained on; default {SearchSpec.score_images:,}",
    )
    group.add_argument(
        "--least-steps", type=int, default=SearchSpec.least_steps, metavar="N", help="of a trial"
    )
    group.add_argument(
        "--most-steps",
        type=int,
        default=SearchSpec.most_steps,
        metavar="N",
        help="of a trial whose noise is drawn; settings that afford more are not tried",
    )


def _add_where(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("where it runs")
    group.add_argument(
        "--on",
        choices=("ray", "here"),
        default="ray",
        help="ray: trials side by side on Ray Tune (default); here: in turn, in this process",
    )
    group.add_argument("--concurrent", type=int, metavar="N", help="trials at a time")
    group.add_argument("--cpus-per-trial", type=int, default=1, metavar="N", help="default 1")
    group.add_argument(
        "--gpus-per-trial", type=float, metavar="G", help="default: one where there are some"
    )
    group.add_argument("--address", metavar="HOST:PORT", help="of the cluster; or RAY_ADDRESS")
    group.add_argument("--wait", action="store_true", help="wait for the cluster to grow")


def _listed(choices: Any) -> str:
    return ", ".join(get_args(choices))


def _tune(args: argparse.Namespace) -> int:
    folder = None
    if args.resume is not None:
        if args.method is not None or args.dataset is not None or args.settings:
            raise BadInput("--resume goes on with a search as it was: leave out method and data")
        folder = open_search_folder(args.resume)
    search = _search(args) if folder is None else folder.read_search()
    conduct, start = _ways(args)
    tuned = tune(
        search,
        folder=folder,
        conduct=conduct,
        start=start,
        track=not args.no_tracking,
        progress=silent if args.quiet else terminal,
        say=hush if args.quiet else say,
    )
    _print(tuned, as_json=args.json)
    return 0


def _search(args: argparse.Namespace) -> SearchSpec:
    from dpray import methods

    if args.method is None:
        raise BadInput(f"name a method: {', '.join(methods.table())}")
    kind = methods.find(args.method)
    if args.dataset is None:
        raise BadInput("name a dataset with --dataset; `dpray data list` shows what there is")
    _refuse_unused(args, kind)
    said = {name: getattr(args, name) for name in ("looks", "score", "score_images")}
    return SearchSpec(
        method=args.method,
        dataset=args.dataset,
        charge=args.charge,
        trials=args.trials,
        space=load_space(args.method, args.space),
        epsilon=args.epsilon,
        delta=args.delta,
        seed=args.seed,
        settings=_fixed(args, kind),
        public=args.public,
        insist=args.insist,
        law=args.law,
        cap=args.cap,
        sampler=args.sampler,
        scheduler=args.scheduler,
        proxy=args.proxy,
        least_steps=args.least_steps,
        most_steps=args.most_steps,
        **{name: value for name, value in said.items() if value is not None},
    )


def _refuse_unused(args: argparse.Namespace, kind: type[Any]) -> None:
    """What was said and would change nothing: who said it expects that it does."""
    if args.looks is not None and args.scheduler == "none":
        choices = ", ".join(name for name in get_args(Scheduler) if name != "none")
        raise BadInput(
            f"--looks {args.looks} needs a scheduler, which looks at trials on their way: add "
            f"--scheduler ({choices}), or leave --looks out"
        )
    scores = {"--score": args.score, "--score-images": args.score_images}
    given = next((f"{name} {value}" for name, value in scores.items() if value is not None), None)
    if given is not None and get_type_hints(kind.fit)["return"] is Classifier:
        raise BadInput(
            f"{given} is for synthesizers: {args.method} is a classifier and is scored by itself"
        )


def _fixed(args: argparse.Namespace, kind: type[Any]) -> dict[str, Any]:
    """What was said outright, and of a preset what the space does not search over."""
    space = load_space(args.method, args.space)
    said = parse_settings(args.settings, kind)
    has_gpu = torch.cuda.is_available() if args.gpus_per_trial is None else args.gpus_per_trial > 0
    settings = with_preset(said, kind, args.preset, has_gpu)
    return {name: value for name, value in settings.items() if name in said or name not in space}


def _ways(args: argparse.Namespace) -> tuple[Callable[..., None], Callable[..., Any]]:
    """Who makes the trials, and how a run in the end is started."""
    if args.on == "here":
        given = (args.concurrent, args.address, args.gpus_per_trial, args.wait or None)
        if args.cpus_per_trial != 1 or any(value is not None for value in given):
            raise BadInput(
                "--concurrent, --cpus-per-trial, --gpus-per-trial, --address and --wait need "
                "--on ray"
            )
        return run_here, execute
    from dpray.distributed.train import Where, train
    from dpray.distributed.tune import TrialSize, run_on_ray

    size = TrialSize(
        args.cpus_per_trial, args.gpus_per_trial, args.concurrent, args.address, args.wait
    )
    where = Where(1, args.gpus_per_trial, args.address, args.wait)
    return partial(run_on_ray, size=size), partial(train, where=where)


def _print(tuned: Tuned, *, as_json: bool) -> None:
    if as_json:
        print_json(_as_json(tuned))
        return
    result, cost, card = tuned.result, tuned.outcome.cost, tuned.result.card
    metrics = {metric.name: metric.value for metric in result.metrics}
    settings = " ".join(f"{name}={_short(value)}" for name, value in _best(tuned).items())
    epsilon = "infinite" if card.epsilon is None else f"{card.epsilon:.4g}"
    lines = [
        ("best settings", settings),
        ("test accuracy", f"{100 * metrics['test_accuracy']:.2f} %"),
        ("epsilon", f"{epsilon}, delta {card.delta:g}, {card.adjacency}"),
        ("covers", card.covers),
        ("search", _search_line(tuned)),
        ("model", tuned.model),
        ("privacy card", result.folder.path / "card.txt"),
        ("specification", f"{tuned.folder.best}   (dpray run --spec; spends a budget of its own)"),
        ("folder", tuned.folder.path),
    ]
    if "search_score" in metrics:
        score = f"{100 * metrics['search_score']:.2f} %, noisy, on records held out of the training"
        lines.insert(1, ("score", score))
    for label, value in lines:
        print(f"{label:<14} {value if value is not None else '-'}")
    if not cost.releasable:
        say(f"not fit for release: {cost.reason}")


def _search_line(tuned: Tuned) -> str:
    if tuned.outcome.cost.how == "select":
        return "a secret number of trials, of which the best is this"
    trials = tuned.outcome.trials
    worst = sum(one.score == float("-inf") for one in trials)
    stopped = sum(one.stopped for one in trials)
    return f"{len(trials)} trials, {stopped} stopped early, {worst} without a score"


def _best(tuned: Tuned) -> dict[str, Any]:
    """The settings that were searched over, and what followed from them."""
    names = {*tuned.outcome.search.space, "steps", "epochs"}
    given = tuned.result.spec.settings
    return {name: value for name, value in sorted(given.items()) if name in names}


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _as_json(tuned: Tuned) -> dict[str, Any]:
    result, cost = tuned.result, tuned.outcome.cost
    value: dict[str, Any] = {
        "search_id": tuned.folder.search_id,
        "run_id": result.run_id,
        "method": result.spec.method,
        "dataset": result.spec.dataset,
        "epsilon": result.card.epsilon,
        "delta": result.card.delta,
        "search": cost.to_json(),
        "best": dict(result.spec.settings),
        "metrics": {metric.name: metric.value for metric in result.metrics},
        "model": tuned.model,
        "card": str(result.folder.path / "card.json"),
        "spec": str(tuned.folder.best),
        "fit_for_release": result.card.fit_for_release,
    }
    if cost.how != "select":
        value["trials"] = [
            {
                "number": one.number,
                "draw": dict(one.draw),
                "score": one.score if one.score > float("-inf") else None,
                "stopped": one.stopped,
            }
            for one in tuned.outcome.trials
        ]
    return value
