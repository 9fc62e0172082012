#!/usr/bin/env python3
"""Keeps the tables of an experiment in `bench/results`, without its pictures.

    python3 bench/keep.py runs/experiment-main [--date 2026-11-18]

`bench/results/NAME` is replaced: git has the older runs. Pictures and drawings stay in the run's directory. The report keeps
their captions, which hold the numbers of single chains, and says when the experiment ran.
"""

import argparse
import datetime
import pathlib
import re
import shutil
import tomllib

KEPT = ["config.toml", "settings.toml", "results.csv", "timings.csv", "levels.csv", "report.md"]
RESULTS = pathlib.Path(__file__).parent / "results"


def without_pictures(report: str, date: str) -> str:
    """A report that links to no picture; a caption becomes a line of a list."""
    report = re.sub(r"^(.+)\n\n!\[[^\]]*\]\(pictures/[^)]*\)\n\n?", r"- \1\n", report, flags=re.M)
    report = re.sub(r"^!\[[^\]]*\]\([^)]*\)\n\n?", "", report, flags=re.M)
    report = re.sub(r"^## Drawings\n+(?=## |\Z)", "", report, flags=re.M)
    report = re.sub(r"(?<=[^\n])\n(## )", r"\n\n\1", report)
    title, rest = report.split("\n", 1)
    return f"{title}\n\nRun on {date}.\n{rest.rstrip()}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=pathlib.Path, help="the directory of an experiment")
    parser.add_argument("--date", help="the day on which it ran [default: when its table was written]")
    args = parser.parse_args()
    table = args.run / "results.csv"
    date = args.date or datetime.date.fromtimestamp(table.stat().st_mtime).isoformat()
    name = tomllib.loads((args.run / "config.toml").read_text())["name"]
    out = RESULTS / name
    if out.exists():
        shutil.rmtree(out)
    out.mkdir(parents=True)
    for file in KEPT:
        if (args.run / file).exists():
            shutil.copyfile(args.run / file, out / file)
    report = out / "report.md"
    report.write_text(without_pictures(report.read_text(), date))
    print(f"{out}: {sum(f.stat().st_size for f in out.iterdir()) // 1000} kB")


if __name__ == "__main__":
    main()
