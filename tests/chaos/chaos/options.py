"""The command line."""

import argparse
from dataclasses import dataclass
from pathlib import Path

from chaos.faults import NAMES


@dataclass(frozen=True)
class Options:
    isopod: Path
    seed: int
    minutes: float
    kills: int | None
    faults: tuple[str, ...]
    database: str | None
    max_violations: int
    output: Path
    write_docs: bool


def parse(words: list[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(prog="cargo xtask chaos", description="Faults on a schedule, and what they must not break.")
    parser.add_argument("--isopod", required=True, type=Path, help="the program to test")
    parser.add_argument("--seed", type=int, default=1, help="decides faults, victims and pauses [default: 1]")
    parser.add_argument("--minutes", type=float, default=2.0, help="how long faults go on [default: 2]")
    parser.add_argument("--kills", type=int, help="stop after so many kills, if that is earlier")
    parser.add_argument("--faults", type=_faults, default=NAMES, help=f"only these: {','.join(NAMES)}")
    parser.add_argument("--database", choices=["sqlite", "postgres"], help="where records are kept [default: the seed decides]")
    parser.add_argument("--max-violations", type=int, default=100, help="stop after so many violations [default: 100]")
    parser.add_argument(
        "--output", type=Path, default=Path("target/chaos"), help="where results and logs go [default: target/chaos]"
    )
    parser.add_argument("--write-docs", action="store_true", help="write docs/chaos.md")
    return Options(**vars(parser.parse_args(words)))


def _faults(text: str) -> tuple[str, ...]:
    chosen = tuple(text.split(","))
    unknown = [name for name in chosen if name not in NAMES]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown faults: {', '.join(unknown)}; known are {', '.join(NAMES)}")
    return chosen
