#!/usr/bin/env python3
"""Draws how often truths lie among samples, by frequency, from the results of `daps validate network --out DIR`.

    python3 bench/coverage.py --out docs/img/coverage.png bench/results/coverage/held-out.jsonl

One panel a task, one line a method; the grey line is what exact samples have. Needs matplotlib.
"""

import argparse
import json
import pathlib

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

COLOURS = {"best": "tab:blue", "fast": "tab:orange", "best-before": "lightsteelblue", "fast-before": "navajowhite"}
WORDS = {"best-before": "best, before", "fast-before": "fast, before"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=pathlib.Path, nargs="+", help="results.jsonl, one or several")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="the picture")
    args = parser.parse_args()
    rows = [json.loads(line) for file in args.results for line in file.read_text().splitlines()]
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    figure, panels = plt.subplots(1, len(tasks), figsize=(2.9 * len(tasks), 3.0), sharey=True, squeeze=False)
    for panel, task in zip(panels[0], tasks):
        of_task = [row for row in rows if row["task"] == task]
        panel.axhline(of_task[0]["nominal"], color="grey", linewidth=1, label="exact samples")
        for row in of_task:
            bands = [band for band in row["bands"] if band["coverage"]["mean"] is not None]
            panel.errorbar(
                [band["until"] for band in bands],
                [band["coverage"]["mean"] for band in bands],
                [band["coverage"]["error"] for band in bands],
                label=WORDS.get(row["method"], row["method"]),
                color=COLOURS.get(row["method"]),
                marker="o",
                markersize=3,
                linewidth=1.4,
            )
        panel.set_xscale("log")
        panel.set_title(task.replace("_", " "), fontsize=10)
        panel.set_xlabel("frequency, half periods a pixel", fontsize=8)
        panel.tick_params(labelsize=8)
    panels[0][0].set_ylabel("share of truths between the samples", fontsize=8)
    panels[0][0].legend(fontsize=7, loc="lower left")
    figure.tight_layout()
    figure.savefig(args.out, dpi=110)
    print(args.out)


if __name__ == "__main__":
    main()
