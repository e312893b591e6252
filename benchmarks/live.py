"""What live speech is worth, on recordings of people with real weights: each command makes a table.

    python benchmarks/live.py errors ../shared --part test --clips 60 --frame-thresholds 10,25,50 --log log
    python benchmarks/live.py COMMAND --help

Every command prints a Markdown table and then one JSON line, and goes on where --log ends. Clips:
`human_clips`, whose `dev` part chooses settings and whose `test` part reports. One thread; processor time is
this process's own.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import live_beside
import live_codeswitch
import live_errors
import live_hour
import live_policy
import live_sounds
import live_switch
import live_translate
import live_waits
from live_run import GIVEN, Log, options_from, source_version

COMMANDS: dict[str, Any] = {
    "errors": live_errors,
    "policy": live_policy,
    "waits": live_waits,
    "noise": live_sounds,
    "hour": live_hour,
    "switching": live_switch,
    "codeswitch": live_codeswitch,
    "translate": live_translate,
    "beside": live_beside,
}


def numbers(text: str) -> list[float]:
    return [float(one) for one in text.split(",")]


def counts(text: str) -> list[int]:
    return [int(one) for one in text.split(",")]


def add_common(parser: argparse.ArgumentParser, switching: str, languages: str) -> None:
    parser.add_argument("shared", type=Path, help="folder that holds data/manifest.jsonl")
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
        help="of StreamOptions; agreement.trusted=0.5, encoder={}",
    )
    parser.add_argument(
        "--session",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help="of Model.session; vad=false, following.switch.…=…",
    )


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        one = commands.add_parser(
            name, description=module.HELP, help=module.HELP.split("\n")[0], formatter_class=raw
        )
        add_common(one, *getattr(module, "FOLLOWS", ("off", GIVEN)))
        module.add_arguments(one)
        one.set_defaults(run=module.run)
    given = parser.parse_args()
    given.label = given.label or source_version()
    given.log = Log(given.log)
    given.stream, given.session = options_from(given.stream), options_from(given.session)
    given.run(given)


if __name__ == "__main__":
    main()
