"""Plots of the benchmarks' figures, from their JSON files.

    python -m tests.benchmarks.plots bench-bind.json bench-costs.json --out docs/plots

Draws every plot whose figures exist; nothing here measures or computes anything but the drawing.
"""

import argparse
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

OURS, OTHERS, THIRD = "#1f5f8b", "#b9c4cc", "#e0a458"
# Figures by name, as ``report.as_json`` writes them.
Figures = Mapping[str, Mapping[str, Any]]


def main() -> int:
    """Draw every plot whose figures exist."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.plots", description="Plots of the benchmarks.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="JSON that a benchmark wrote")
    parser.add_argument("--out", type=Path, default=Path("docs/plots"), help="where to (%(default)s)")
    options = parser.parse_args()
    figures = {f["name"]: f for file in options.files for f in json.loads(file.read_text())["figures"]}
    options.out.mkdir(parents=True, exist_ok=True)
    # Equal figures give equal bytes.
    mpl.rcParams["svg.hashsalt"] = "bowline"
    mpl.rcParams["svg.fonttype"] = "none"
    for name, draw in {"drain": drain, "latency": latency, "memory": memory, "costs": costs}.items():
        plot = Figure(figsize=(8, 4), layout="constrained")
        if draw(plot.subplots(), figures):
            file = options.out / f"{name}.svg"
            plot.savefig(file, metadata={"Date": None})
            print(file)
    return 0


def drain(axes: Axes, figures: Figures) -> bool:
    """Binds per second: the ceilings, and the reconciler's rates."""
    names = [name for name, figure in figures.items() if figure["unit"] == "binds/s" and ": rate" not in name]
    values = [figures[name]["median"] for name in names]
    bars = axes.barh(names, values, color=[OTHERS if name.startswith("ceiling") else OURS for name in names])
    labels = [f"{value:.0f}" + _ratio(figures[name]) for name, value in zip(names, values, strict=True)]
    axes.bar_label(bars, labels, padding=4)
    _finish(axes, "Draining a backlog", "binds a second", max(values, default=1) * 1.2)
    axes.invert_yaxis()
    return bool(names)


def latency(axes: Axes, figures: Figures) -> bool:
    """From the request to the bound pod, beside the floor of the same rate."""
    pattern = re.compile(r"(at \d+/s): floor (p50|p99)")
    places = [match.groups() for name in figures if (match := pattern.fullmatch(name))]
    for shift, word, color in ((-0.2, "floor", OTHERS), (0.2, "ours", OURS)):
        values = [figures[f"{where}: {word} {share}"]["median"] for where, share in places]
        bars = axes.bar([at + shift for at in range(len(places))], values, 0.4, label=word, color=color)
        axes.bar_label(bars, [f"{value:.0f}" for value in values], padding=2)
    axes.set_xticks(range(len(places)), [f"{where}\n{share}" for where, share in places])
    axes.set_yscale("log")
    axes.set_ylabel("ms")
    axes.set_title("From the request's creation to its bound pod", loc="left")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return bool(places)


def memory(axes: Axes, figures: Figures) -> bool:
    """Resident memory over bound pods."""
    pattern = re.compile(r"memory .*at (\d+) bound pods.*")
    points = [(int(match[1]), figures[name]["median"]) for name in figures if (match := pattern.fullmatch(name))]
    pods, values = [pod for pod, _ in points], [value for _, value in points]
    axes.plot(pods, values, marker="o", color=OURS)
    for at, value in points:
        axes.annotate(f"{value:.0f} MB", (at, value), textcoords="offset points", xytext=(0, 8), ha="center")
    axes.set_ylim(0, max(values, default=1) * 1.3)
    axes.set_xlabel("pods on nodes")
    axes.set_ylabel("MB")
    axes.set_title("Memory of the reconciler", loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    return bool(points)


def costs(axes: Axes, figures: Figures) -> bool:
    """CPU per bind, by process."""
    pattern = re.compile(r"(.+): CPU of (kube-apiserver|etcd|client)")
    rows: dict[str, dict[str, float]] = {}
    for name, figure in figures.items():
        if match := pattern.fullmatch(name):
            rows.setdefault(match[1], {})[match[2]] = figure["median"]
    left = [0.0] * len(rows)
    for process, color in (("kube-apiserver", OTHERS), ("etcd", THIRD), ("client", OURS)):
        values = [row[process] for row in rows.values()]
        bars = axes.barh(list(rows), values, left=left, label=process, color=color)
        text = "white" if color == OURS else "black"
        axes.bar_label(bars, [f"{value:.1f}" for value in values], label_type="center", color=text)
        left = [before + value for before, value in zip(left, values, strict=True)]
    _finish(axes, "CPU time of a bind", "ms of CPU per bind", max(left, default=1) * 1.25)
    axes.invert_yaxis()
    axes.legend(frameon=False)
    return bool(rows)


def _ratio(figure: Mapping[str, Any]) -> str:
    return f" ({figure['ratio']:.2f} of its ceiling)" if figure["ratio"] is not None else ""


def _finish(axes: Axes, title: str, unit: str, limit: float) -> None:
    axes.set_title(title, loc="left")
    axes.set_xlabel(unit)
    axes.set_xlim(0, limit)
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    sys.exit(main())
