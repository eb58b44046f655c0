"""`dpray run` and `dpray resume`: a specification from words, a run, a summary."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dpray.api import Outcome, run_spec
from dpray.cli.output import hush, print_json, say
from dpray.errors import BadInput
from dpray.execute import Result, execute
from dpray.progress import silent, terminal
from dpray.runs import open_folder
from dpray.spec import RunSpec, choose_preset, parse_settings, with_preset

_EPILOG = """\
examples:
  dpray run dp-sgd --dataset mnist --epsilon 3
  dpray run dp-sgd --dataset mnist --epsilon 3 --set model=cnn features=pixels --runs 3
  dpray run dp-sgd --dataset my-images.npz --epsilon 1 --delta 1e-6 --json
  dpray run dp-sgd --dataset mnist --epsilon 3 --workers 2 --address 10.0.0.5:6379
  dpray run dp2-vae --dataset mnist --epsilon 10 --preset laptop --encoders 2500
  dpray run psg --dataset mnist --epsilon 10 --set spc=10 --workers 2
  dpray run continual --dataset mnist --epsilon 10 --set learner=psg learner_settings="spc=10"
  dpray run sgd --dataset mnist                       (no privacy: the ceiling)
  dpray run dp-merf --dataset mnist:0,2,4,6,8 --epsilon 1      (five of the ten classes)

`dpray methods` lists the methods, `dpray methods dp-sgd` its settings and presets.
A run that was interrupted goes on with `dpray resume RUN_ID`.

A dataset may carry classes and a part. mnist:0,2,4,6,8 is the records of five classes, by their
places in the class list; mnist@labelling is a third of the training records, the same at all
times, and mnist@rest the other two; mnist:0,2,4,6,8@rest is both. The test set has no parts.

Some methods read public data beside the private ones. What you name with --public everybody may
see; the card repeats it. Where the private records are a part @rest, their third @labelling is
declared public as well, to label images with.
  --public 1,3,5,7,9           these classes of the same dataset; the others are private
  --public fashion-mnist       another dataset, or some of it: fashion-mnist:0,1@rest
  --public faces.npz           a file or a folder of yours
"""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "run",
        description="Train METHOD on a dataset, spend exactly the budget, measure, register.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("method", nargs="?", metavar="METHOD", help="see `dpray methods`")
    parser.add_argument(
        "--dataset",
        metavar="D",
        help="a name (`dpray data list`), an .npz file, or a folder; with some classes: "
        "mnist:0,2,4,6,8; with a part: mnist@rest",
    )
    parser.add_argument(
        "--public",
        metavar="D",
        help="data that everybody may see, for a method that reads some: classes of the same "
        "dataset (1,3,5,7,9) or another dataset (fashion-mnist)",
    )
    parser.add_argument("--epsilon", type=float, metavar="E", help="the budget")
    parser.add_argument("--delta", type=float, default=1e-5, help="default 1e-5")
    parser.add_argument(
        "--noise-multiplier",
        type=float,
        metavar="Z",
        help="fix the noise instead of epsilon; the card says what it costs",
    )
    parser.add_argument("--seed", type=int, default=0, help="of public choices; never of noise")
    parser.add_argument(
        "--set",
        dest="settings",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUE",
        help="settings of the method",
    )
    parser.add_argument(
        "--preset", metavar="NAME", help="settings of the method under a name; --set wins over them"
    )
    parser.add_argument(
        "--encoders",
        type=int,
        metavar="K",
        help="of dp2-vae: into how many subsets the records go, an encoder each",
    )
    parser.add_argument("--spec", type=Path, metavar="FILE", help="a run specification as JSON")
    parser.add_argument("--runs", type=int, default=1, metavar="N", help="repeat with N seeds")
    parser.add_argument("--insist", action="store_true", help="allow an epsilon above 20")
    _add_where(parser)
    parser.set_defaults(handler=_run)

    parser = commands.add_parser("resume")
    parser.add_argument("run_id", metavar="RUN_ID")
    _add_where(parser)
    parser.set_defaults(handler=_resume)


def _add_where(parser: argparse.ArgumentParser) -> None:
    where = parser.add_argument_group("where it runs")
    where.add_argument(
        "--on",
        choices=("ray", "here"),
        default="ray",
        help="ray: Ray Train workers, on a local Ray where there is no cluster (default); "
        "here: this process",
    )
    where.add_argument("--workers", type=int, default=1, metavar="N", help="Ray Train workers")
    where.add_argument(
        "--gpus-per-worker", type=float, metavar="G", help="default: one where there are enough"
    )
    where.add_argument("--address", metavar="HOST:PORT", help="of the cluster; or RAY_ADDRESS")
    where.add_argument("--wait", action="store_true", help="wait for the cluster to grow")
    parser.add_argument("--no-tracking", action="store_true", help="do not write to MLflow")
    parser.add_argument("--quiet", action="store_true", help="no progress bars and no notes")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _starter(args: argparse.Namespace) -> Callable[..., Result]:
    """How a run is started: in this process, or on Ray Train workers."""
    if args.on == "here":
        if args.workers != 1 or args.address or args.gpus_per_worker or args.wait:
            raise BadInput("--workers, --address, --gpus-per-worker and --wait need --on ray")
        return execute
    from dpray.distributed.train import Where, train

    where = Where(args.workers, args.gpus_per_worker, args.address, args.wait)
    return partial(train, where=where)


def _run(args: argparse.Namespace) -> int:
    if args.runs < 1:
        raise BadInput(f"--runs {args.runs} is out of range: it must be at least 1")
    outcome = run_spec(
        _spec(args),
        runs=args.runs,
        track=not args.no_tracking,
        progress=silent if args.quiet else terminal,
        say=hush if args.quiet else say,
        start=_starter(args),
    )
    _print(outcome, as_json=args.json)
    return 0


def _spec(args: argparse.Namespace) -> RunSpec:
    from dpray import methods

    if args.spec is not None:
        names = ("method", "dataset", "public", "epsilon", "settings", "preset", "encoders")
        if any(getattr(args, name) not in (None, []) for name in names):
            raise BadInput("give --spec, or a method with its dataset and budget, not both")
        return RunSpec.read(args.spec)
    if args.method is None:
        raise BadInput(f"name a method: {', '.join(methods.table())}")
    method = methods.find(args.method)
    if args.dataset is None:
        raise BadInput("name a dataset with --dataset; `dpray data list` shows what there is")
    return RunSpec(
        method=args.method,
        dataset=args.dataset,
        epsilon=args.epsilon,
        delta=args.delta,
        noise_multiplier=args.noise_multiplier,
        seed=args.seed,
        settings=_settings(args, method),
        insist=args.insist,
        public=args.public,
    )


def _settings(args: argparse.Namespace, method: type) -> dict[str, Any]:
    """What was said outright, on top of a preset."""
    settings = parse_settings(args.settings, method)
    if args.encoders is not None:
        if "encoders" not in {field.name for field in dataclasses.fields(method)}:
            raise BadInput(f"--encoders is for dp2-vae: {args.method} has no encoders to count")
        if settings.setdefault("encoders", args.encoders) != args.encoders:
            raise BadInput(
                f"--encoders {args.encoders} and --set encoders={settings['encoders']} differ: "
                "give one of them"
            )
    if args.gpus_per_worker is None:
        has_gpu = torch.cuda.is_available()
    else:
        has_gpu = args.gpus_per_worker > 0
    chosen = choose_preset(method, args.preset, has_gpu)
    if args.preset is None and chosen is not None and not args.quiet:
        say(f"note: preset {chosen}, since there is a GPU; --preset chooses another")
    return with_preset(settings, method, args.preset, has_gpu)


def _resume(args: argparse.Namespace) -> int:
    spec = open_folder(args.run_id).read_spec()
    outcome = run_spec(
        spec,
        run_id=args.run_id,
        track=not args.no_tracking,
        progress=silent if args.quiet else terminal,
        say=hush if args.quiet else say,
        start=partial(_starter(args), resume=True),
    )
    _print(outcome, as_json=args.json)
    return 0


def _print(outcome: Outcome, *, as_json: bool) -> None:
    if as_json:
        print_json(_as_json(outcome))
        return
    result, card, metrics = outcome.result, outcome.result.card, outcome.metrics()
    epsilon = "infinite (no privacy)" if card.epsilon is None else f"{card.epsilon:.4g}"
    accuracy = f"{100 * metrics['test_accuracy']:.2f} %"
    if "test_accuracy_std" in metrics:
        accuracy += f" +- {100 * metrics['test_accuracy_std']:.2f} over {len(outcome.results)} runs"
    if "test_accuracy_noise" in metrics:
        accuracy += f" +- {100 * metrics['test_accuracy_noise']:.2f} of noise: a private hold-out"
    lines = [
        ("test accuracy", accuracy),
        ("epsilon", f"{epsilon}, delta {card.delta:g}, {card.adjacency}, {card.covers}"),
        ("model", outcome.models[0]),
        ("privacy card", result.folder.path / "card.txt"),
        ("picture", result.folder.picture),
        ("core-seconds", f"{metrics['core_seconds']:.0f}"),
    ]
    lines[1:1] = [*_task_lines(metrics), *_synthetic_lines(metrics)]
    if len(outcome.results) > 1 and card.epsilon is not None:
        total = f"{outcome.epsilon_of_all():.4g} to release all {len(outcome.results)} runs"
        lines.insert([label for label, _ in lines].index("epsilon") + 1, ("", total))
    for label, value in lines:
        print(f"{label:<14} {value if value is not None else '-'}")
    for reason in card.reasons_against:
        say(f"not fit for release: {reason}")


def _task_lines(metrics: dict[str, float]) -> list[tuple[str, str]]:
    """Accuracy on all classes seen so far, task by task; a task without test records has none."""
    after = {
        int(number): value
        for name, value in metrics.items()
        if (number := name.removeprefix("accuracy_after_")).isdecimal()
    }
    known = ", ".join(f"{100 * after[task]:.2f}" for task in sorted(after))
    return [("", f"after each task: {known} %")] if after else []


def _synthetic_lines(metrics: dict[str, float]) -> list[tuple[str, str]]:
    """What else is known of synthetic images: other classifiers, and how they look to the judge."""
    known = [
        f"{name} {100 * metrics[metric]:.2f} %"
        for name in ("lr", "mlp", "cnn", "convnet")
        if (metric := f"{name}_accuracy") in metrics
    ]
    if not known:
        return []
    lines = [("", f"trained on synthetic images, tested on real ones: {', '.join(known)}")]
    if "domain_fid" in metrics:
        looks = f"{metrics['domain_fid']:.1f}, score {metrics['domain_is']:.2f}"
        lines.append(("domain FID", looks))
    return lines


def _as_json(outcome: Outcome) -> dict[str, Any]:
    result, card, metrics = outcome.result, outcome.result.card, outcome.metrics()
    value: dict[str, Any] = {
        "run_id": result.run_id,
        "method": result.spec.method,
        "dataset": result.spec.dataset,
        "epsilon": card.epsilon,
        "delta": card.delta,
        "noise_multiplier": card.noise_multiplier,
        "steps": card.steps,
        "sample_rate": card.sample_rate,
        "metrics": {k: v for k, v in metrics.items() if not k.startswith("core_seconds")},
        "model": outcome.models[0],
        "card": str(result.folder.path / "card.json"),
        "core_seconds": metrics["core_seconds"] * len(outcome.results),
        "fit_for_release": card.fit_for_release,
    }
    if result.spec.public is not None:
        value["public"] = result.spec.public
    if len(outcome.results) > 1:
        value["run_ids"] = [result.run_id for result in outcome.results]
        value["models"] = list(outcome.models)
        value["epsilon_of_all_runs"] = None if card.epsilon is None else outcome.epsilon_of_all()
    return value
