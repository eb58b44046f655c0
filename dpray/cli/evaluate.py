"""`dpray evaluate`: what a synthesizer, a classifier or a file of images is worth on a dataset.

All that can be wrong is refused before anything is trained. Figures that read private records are
marked, shown to the owner of the data alone, and never recorded.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpray.cli.output import hush, print_json, print_table, say
from dpray.cli.releases import MODEL_HELP, Opened, open_release
from dpray.contract import Classifier, Release, Synthesizer
from dpray.data.datasets import load
from dpray.data.records import Dataset
from dpray.errors import BadInput, DprayError
from dpray.evaluation.downstream import CLASSIFIERS
from dpray.evaluation.inception import find_weights
from dpray.evaluation.metrics import Metric, Source
from dpray.evaluation.suite import (
    SUITES,
    Suite,
    check_images,
    find_suite,
    measure_classifier,
    measure_images,
    refuse_misfit,
    refuse_private_hold_out,
)
from dpray.evaluation.synthetic import Synthetic, draw, num_images, read_synthetic
from dpray.models.generators import ImageSet
from dpray.pool import Pool, SerialPool
from dpray.progress import silent, terminal
from dpray.tracking.evaluations import (
    Evaluation,
    record_evaluation,
    recorded_as,
    split_by_source,
)

if TYPE_CHECKING:
    from dpray.tracking.registry import ModelRow

Say = Callable[[str], None]

_EPILOG = f"""\
examples:
  dpray evaluate dpray-mnist-dp-merf --dataset mnist
  dpray evaluate dpray-mnist-dp-merf/2 --dataset mnist --suite paper --runs 5
  dpray evaluate synthetic.npz --dataset mnist --classifiers lr cnn --json
  dpray evaluate dpray-mnist-dp-sgd --dataset digits --on here     a classifier: its accuracy
  dpray evaluate dpray-own-dp-merf --dataset own.npz --reference private    for your eyes only

Images are drawn, classifiers are trained on them and tested on the real test set of D, and a judge
that knows D compares them with real images (domain_fid: less is closer; domain_is: more is
clearer). Classifiers and seeds are trained side by side, as Ray tasks of one thread each.

suites:
  quick   {" ".join(SUITES["quick"].classifiers)}, once: what every run measures of itself
  small   {" ".join(SUITES["small"].classifiers)}, {SUITES["small"].runs} times each: the same for
          a set of a few images
  paper   {" ".join(SUITES["paper"].classifiers)},
          {SUITES["paper"].runs} times each; FID and Inception Score where their weights can be had

Figures of a registered model, or of a run that was recorded, are added to its MLflow run as
evaluate/<dataset>/<suite>/<name>; nothing the run measured of itself is replaced. Figures that
read private records are marked, and are not recorded.
"""
_MOST_IMAGES = 1_000_000  # to be held in memory as floats
_OF_IMAGES = ("suite", "classifiers", "runs", "count", "seed", "inception_weights")


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "evaluate",
        description="Measure a model, or synthetic images from an .npz file, on a dataset.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help=f"{MODEL_HELP}; or FILE.npz of images")
    parser.add_argument(
        "--dataset",
        required=True,
        metavar="D",
        help="a name, an .npz file or a folder; with classes and part as its run had them, such as "
        "mnist:0,2,4,6,8@rest",
    )
    parser.add_argument("--suite", metavar="NAME", help=f"{' or '.join(SUITES)} (default quick)")
    parser.add_argument(
        "--classifiers", nargs="+", metavar="C", help=f"instead: {', '.join(CLASSIFIERS)}"
    )
    parser.add_argument("--runs", type=int, metavar="N", help="seeds of every classifier")
    parser.add_argument(
        "--count", type=int, metavar="N", help="images to draw (default: as D has records)"
    )
    parser.add_argument("--seed", type=int, metavar="S", help="of draws and runs (default 0)")
    parser.add_argument(
        "--reference",
        choices=("test", "private"),
        default="test",
        help="what images are compared with; private: un-noised figures that must not be published",
    )
    parser.add_argument(
        "--inception-weights", type=Path, metavar="FILE", help="pytorch-fid's, for --suite paper"
    )
    parser.add_argument(
        "--on", choices=("ray", "here"), default="ray", help="where classifiers are trained"
    )
    parser.add_argument("--address", metavar="HOST:PORT", help="of the cluster; or RAY_ADDRESS")
    parser.add_argument("--no-tracking", action="store_true", help="do not write to MLflow")
    parser.add_argument("--quiet", action="store_true", help="no progress bars and no notes")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(handler=evaluate_command)


def evaluate_command(args: argparse.Namespace) -> int:
    suite = _suite(args)
    notes: list[str] = []

    def tell(text: str) -> None:
        if text.startswith("note: "):
            notes.append(text.removeprefix("note: "))
        (hush if args.quiet else say)(text)

    if args.model.lower().endswith(".npz"):
        evaluation, row = _of_file(args, suite, tell), None
    else:
        evaluation, row = _of_release(args, suite, tell)
    return _finish(replace(evaluation, notes=tuple(notes)), row, as_json=args.json, tell=tell)


def _of_file(args: argparse.Namespace, suite: Suite, tell: Say) -> Evaluation:
    path = Path(os.path.expanduser(args.model))
    if not path.is_file():
        raise BadInput(f"no file {args.model}")  # before the dataset, which may have to be fetched
    if args.count is not None:
        raise BadInput(f"{args.model} is measured whole: leave out --count")
    dataset = _load(args, tell)
    return _measure(args, read_synthetic(path, dataset.train), dataset, suite, tell)


def _of_release(
    args: argparse.Namespace, suite: Suite, tell: Say
) -> tuple[Evaluation, ModelRow | None]:
    """The evaluation of a model, and the registered version it may be recorded with."""
    opened = open_release(args.model)
    release = opened.release
    _refuse_what_does_not_apply(args, release)
    dataset = _load(args, tell)
    refuse_misfit(release, dataset.train)
    row = None if args.no_tracking else _row(args.model, opened, tell)
    if isinstance(release, Synthesizer):
        count = args.count or num_images(dataset.train.num_records)
        evaluation = _measure(args, draw(release, count, args.seed or 0), dataset, suite, tell)
    else:
        assert isinstance(release, Classifier)
        metric = measure_classifier(release, dataset, reference=args.reference)
        evaluation = Evaluation(args.model, dataset.train.name, args.reference, (metric,))
    return replace(evaluation, subject=opened.row.reference if opened.row else args.model), row


def _load(args: argparse.Namespace, tell: Say) -> Dataset:
    dataset = load(args.dataset, say=tell)
    for note in dataset.notes:
        tell(f"note: {note}")
    refuse_private_hold_out(dataset, args.reference)
    return dataset


def _suite(args: argparse.Namespace) -> Suite:
    """What the words alone can get wrong, before anything is opened."""
    suite = find_suite(args.suite or "quick", classifiers=args.classifiers, runs=args.runs)
    if (args.classifiers, args.runs, args.count) != (None, None, None):
        suite = replace(suite, name="custom")  # its figures are not those of the suite
    if args.count is not None and not 1 <= args.count <= _MOST_IMAGES:
        raise BadInput(f"--count {args.count} is out of range: from 1 to {_MOST_IMAGES:,}")
    if args.seed is not None and not 0 <= args.seed < 1 << 63:
        raise BadInput(f"--seed {args.seed} is out of range: it must be 0 to 2^63 - 1")
    if args.on == "here" and args.address:
        raise BadInput("--address needs --on ray")
    if args.inception_weights is not None:
        if not suite.inception:
            raise BadInput("--inception-weights needs --suite paper, not quick")
        find_weights(args.inception_weights, say)
    return suite


def _refuse_what_does_not_apply(args: argparse.Namespace, release: Release) -> None:
    if isinstance(release, Classifier):
        given = [name for name in _OF_IMAGES if getattr(args, name) is not None]
        if given:
            words = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise BadInput(
                f"{args.model} is a classifier, measured by its accuracy on the test set: "
                f"leave out {words}"
            )
    elif not isinstance(release, Synthesizer):
        raise BadInput(f"{args.model} is a {release.kind}: there is no evaluation for it")
    elif isinstance(release.module, ImageSet) and args.count is not None:
        raise BadInput(f"{args.model} is a set of images, measured whole: leave out --count")


def _row(word: str, opened: Opened, tell: Say) -> ModelRow | None:
    """Where figures are recorded. Asked before training: an unreachable store stops here."""
    if opened.card is None or opened.row is not None:
        return opened.row
    row = recorded_as(opened.card.run_id)
    if row is None:
        tell(f"note: run {word} is not in the model registry: its figures are not recorded")
    return row


def _measure(
    args: argparse.Namespace, images: Synthetic, dataset: Dataset, suite: Suite, tell: Say
) -> Evaluation:
    check_images(images, dataset, suite, args.reference)  # before Ray is started for nothing
    seed, count = args.seed or 0, len(images.labels)
    tell(f"{args.model}: {count} images, suite {suite.name}, seed {seed}")
    missing = dataset.train.num_classes - len(images.labels.unique())
    if missing:
        tell(
            f"note: {missing} of {dataset.train.num_classes} classes have no image: a classifier "
            "trained on the others gets all of theirs wrong"
        )
    metrics = measure_images(
        images,
        dataset,
        suite,
        pool=_pool(args),
        seed=seed,
        reference=args.reference,
        inception_weights=args.inception_weights,
        say=tell,
    )
    return Evaluation(
        subject=args.model,
        dataset=dataset.train.name,
        reference=args.reference,
        metrics=tuple(metrics),
        suite=suite.name,
        runs=suite.runs,
        count=count,
        seed=seed,
    )


def _pool(args: argparse.Namespace) -> Pool:
    progress = silent if args.quiet else terminal
    if args.on == "here":
        return SerialPool(progress)
    from dpray.distributed.cluster import connect
    from dpray.distributed.pool import RayPool

    return RayPool(progress, cluster=connect(args.address))


def _finish(evaluation: Evaluation, row: ModelRow | None, *, as_json: bool, tell: Say) -> int:
    """Records what may be recorded, and prints all of it, also where the store fails."""
    shown, private = split_by_source(evaluation.metrics)
    if private:
        tell(
            f"warning: figures that read private records without noise ({len(private)}) must not "
            "be published, and are not recorded"
        )
    failure: DprayError | None = None
    recorded = False
    if row is not None and any(metric.source is not Source.RELEASE for metric in shown):
        try:
            artifact = record_evaluation(row, replace(evaluation, metrics=shown))
            recorded = True
            tell(f"recorded with {row.reference}: {artifact}")
        except DprayError as error:
            failure = error  # what was measured is worth hours: it is shown first
    if as_json:
        print_json({**evaluation.to_json(), "recorded": recorded})
    else:
        print_table(("MEASUREMENT", "VALUE", "READ"), _lines(evaluation.metrics))
    if failure is not None:
        raise failure
    return 0


def _lines(metrics: Sequence[Metric]) -> list[tuple[str, str, str]]:
    """One line a measurement; its deviation stands beside it and not below."""
    values = {metric.name: metric.value for metric in metrics}
    return [
        (m.name, _shown(m.name, m.value, values.get(f"{m.name}_std")), _read(m.source))
        for m in metrics
        if not m.name.endswith("_std")
    ]


def _shown(name: str, value: float, deviation: float | None) -> str:
    if name.endswith("_converged"):
        return "yes" if value else "no"
    is_share = name.endswith("_accuracy")
    text = f"{100 * value:.2f} %" if is_share else f"{value:.4g}"
    if deviation is None:
        return text
    return f"{text} +- {100 * deviation:.2f}" if is_share else f"{text} +- {deviation:.2g}"


def _read(source: Source) -> str:
    return "private: do not publish" if source is Source.PRIVATE else str(source)
