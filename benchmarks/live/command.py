"""The arguments of the live benchmarks that read clips with real weights, and how one is run.

Such a benchmark prints a Markdown table and then one JSON line, and goes on where --log ends. Clips:
`harness.clips`, whose `dev` part chooses settings and whose `test` part reports. One thread; processor time
is this process's own.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness.arguments import add_shared, benchmark_parser
from benchmarks.live.runs import GIVEN, Log, options_from, source_version


def numbers(text: str) -> list[float]:
    return [float(one) for one in text.split(",")]


def counts(text: str) -> list[int]:
    return [int(one) for one in text.split(",")]


def _add_common(parser: argparse.ArgumentParser, switching: str, languages: str) -> None:
    add_shared(parser)
    parser.add_argument("--log", type=Path, help="what was done so far: JSON lines that are added to")
    parser.add_argument("--label", default="", help="stands for the source in the log [a hash of it]")
    parser.add_argument("--model", default="base")
    parser.add_argument("--dtypes", type=lambda text: text.split(","), default=["float32"])
    parser.add_argument("--frame-thresholds", type=numbers, default=[25.0], metavar="N[,N…]")
    parser.add_argument("--chunk-s", type=numbers, default=[0.5], metavar="S[,S…]", help="update intervals")
    parser.add_argument("--beam-sizes", type=counts, default=[1], metavar="N[,N…]", help="1: greedy [1]")
    parser.add_argument("--switching", choices=("off", "restart", "parallel"), default=switching)
    parser.add_argument("--languages", default=languages, metavar="given|auto|CODE,CODE")
    parser.add_argument(
        "--stream",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help="of StreamOptions; commit.commit_prob=0.5, encoder={}",
    )
    parser.add_argument(
        "--session",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help="of Model.session; vad=false, following.switch.…=…",
    )


def run_command(
    description: str,
    add_arguments: Callable[[argparse.ArgumentParser], None],
    run: Callable[[argparse.Namespace], None],
    follows: tuple[str, str] = ("off", GIVEN),
) -> None:
    """Run a benchmark on what the command line says.

    follows: the defaults of --switching and --languages.
    """
    parser = benchmark_parser(description)
    _add_common(parser, *follows)
    add_arguments(parser)
    given = parser.parse_args()
    given.label = given.label or source_version()
    given.log = Log(given.log)
    given.stream, given.session = options_from(given.stream), options_from(given.session)
    run(given)
