"""`dpray submit` and `dpray jobs`: the same commands, run on a cluster and watched from here."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpray.cli.output import print_json, print_table, say
from dpray.errors import BadInput

if TYPE_CHECKING:  # ray takes a second to load: only when a command needs it
    from dpray.distributed.jobs import Job, JobServer

_SUBMIT_EPILOG = """\
examples:
  dpray submit --follow -- run dp-sgd --dataset mnist --epsilon 3
  dpray submit --address http://127.0.0.1:8265 --no-wait -- methods
  dpray submit --env MLFLOW_TRACKING_URI DPRAY_HOME=/shared/me -- run dp-sgd --dataset mnist \
--epsilon 1
  dpray submit -- run dp-merf --dataset mnist:0,2,4,6,8 --epsilon 1     some classes; --public too

What follows -- is a dpray command as you would type it here. The cluster's token comes from
RAY_AUTH_TOKEN. The working folder goes along, without .git, data, *.npz, keys and runs: put
private images on storage the nodes can read. The exit code is the job's.
"""
_JOBS_EPILOG = """\
examples:
  dpray jobs                          what was submitted, the latest last
  dpray jobs status ID                one job; the exit code is the job's once it is over
  dpray jobs logs ID --follow         its output, as it comes
  dpray jobs stop ID
"""
_STOPPED_HERE = 130


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "submit",
        description="Send a dpray command to a Ray cluster as a job, and wait for its end.",
        usage="dpray submit [--address URL] [--follow | --no-wait] [--job-id ID] "
        "[--env NAME=VALUE ...] [--working-dir DIR] -- COMMAND ...",
        epilog=_SUBMIT_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_address(parser)
    waiting = parser.add_mutually_exclusive_group()
    waiting.add_argument("--follow", action="store_true", help="show the job's output as it comes")
    waiting.add_argument("--no-wait", action="store_true", help="print the job's id and return")
    parser.add_argument("--job-id", metavar="ID", help="a name of yours; default: a new one")
    parser.add_argument(
        "--env",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUE",
        help="variables of the job; NAME alone takes the value it has here; never secrets",
    )
    parser.add_argument(
        "--working-dir",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="the folder to send along (default: this one)",
    )
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="-- COMMAND")
    parser.set_defaults(handler=_submit)
    _add_jobs(commands)


def _add_jobs(commands: Any) -> None:
    parser = commands.add_parser(
        "jobs",
        description="The jobs of a cluster: list them, look at one, read its log, stop it.",
        epilog=_JOBS_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "action", nargs="?", choices=("list", "status", "logs", "stop"), default="list"
    )
    parser.add_argument("job_id", nargs="?", metavar="ID")
    _add_address(parser)
    parser.add_argument("--follow", action="store_true", help="logs: until the job is over")
    parser.add_argument("--json", action="store_true", help="list, status: print JSON")
    parser.set_defaults(handler=_jobs)


def _add_address(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--address",
        metavar="URL",
        help="the dashboard of the cluster; default: RAY_API_SERVER_ADDRESS, RAY_ADDRESS, "
        "else http://127.0.0.1:8265",
    )


def _submit(args: argparse.Namespace) -> int:
    from dpray.distributed import jobs

    words = args.words[1:] if args.words[:1] == ["--"] else args.words
    jobs.entrypoint(words)  # an empty command is refused before anything is sent
    runtime_env = jobs.make_runtime_env(args.working_dir, jobs.parse_variables(args.env))
    server = jobs.connect(args.address)
    job_id = server.submit(words, runtime_env, args.job_id)
    if args.no_wait:
        print(job_id)
        return 0
    say(f"job {job_id} submitted to {server.address}")
    return _watch(server, job_id, follow=args.follow)


def _jobs(args: argparse.Namespace) -> int:
    from dpray.distributed import jobs

    if args.action == "list":
        if args.job_id is not None:
            raise BadInput(f"say what to do with {args.job_id!r}: status, logs or stop")
        return _list(jobs.connect(args.address).jobs(), as_json=args.json)
    if args.job_id is None:
        raise BadInput(f"name a job: dpray jobs {args.action} ID; `dpray jobs` lists them")
    server = jobs.connect(args.address)
    if args.action == "logs" and args.follow:
        return _watch(server, args.job_id, follow=True)
    if args.action == "logs":
        _write(server.logs(args.job_id))
        return 0
    if args.action == "stop":
        running = server.stop(args.job_id)
        say(f"job {args.job_id} {'was asked to stop' if running else 'was over already'}")
        return 0
    job = server.job(args.job_id)
    if args.json:
        print_json(_as_json(job))
    else:
        _print(job)
    return job.exit_code_here if job.is_over else 0


def _watch(server: JobServer, job_id: str, *, follow: bool) -> int:
    """Waits for the end of a job; leaving early leaves the job alone."""
    try:
        job = server.follow(job_id, _write) if follow else server.wait(job_id)
    except KeyboardInterrupt:
        say(
            f"\njob {job_id} goes on. To follow it: dpray jobs logs {job_id} --follow "
            f"--address {server.address}; to stop it: dpray jobs stop {job_id} "
            f"--address {server.address}"
        )
        return _STOPPED_HERE
    if follow:  # standard output is the job's
        say(f"job {job.id} {job.status.lower()}{_reason(job)}")
    else:
        _print(job)
    return job.exit_code_here


def _list(found: list[Job], *, as_json: bool) -> int:
    if as_json:
        print_json([_as_json(job) for job in found])
        return 0
    if not found:
        say("no jobs yet; `dpray submit --help` shows how to send one")
        return 0
    rows = [(job.id, job.status.lower(), _when(job), _lasted(job), job.command) for job in found]
    print_table(("job", "status", "started", "lasted", "command"), rows)
    return 0


def _print(job: Job) -> None:
    for label, value in (
        ("job", job.id),
        ("status", job.status.lower() + _reason(job)),
        ("command", job.command),
        ("started", _when(job)),
        ("lasted", _lasted(job)),
    ):
        print(f"{label:<8} {value if value is not None else '-'}")


def _reason(job: Job) -> str:
    if job.status != "FAILED":
        return ""
    return f": exit code {job.exit_code}" if job.exit_code else f": {job.message}"


def _when(job: Job) -> str | None:
    if job.started is None:
        return None
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(job.started))


def _lasted(job: Job) -> str | None:
    if job.started is None:
        return None
    return f"{(job.ended or time.time()) - job.started:.0f} s"


def _as_json(job: Job) -> dict[str, Any]:
    return {
        "id": job.id,
        "status": job.status,
        "command": job.command,
        "message": job.message,
        "exit_code": job.exit_code,
        "started": job.started,
        "ended": job.ended,
    }


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
