"""Figures as values, and their output."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure: the value of every repetition, and the figure of the same run to compare it with."""

    name: str
    unit: str
    values: tuple[float, ...]
    against: str = ""  # the name of the figure it is divided by
    wanted: str = ""  # what the budget asks of the ratio or the value

    @property
    def median(self) -> float:
        """The figure to quote."""
        return statistics.median(self.values)

    @property
    def noise(self) -> float:
        """Spread of the repetitions: (max - min) / median; 0 for a single one."""
        return (max(self.values) - min(self.values)) / self.median if self.median else 0.0

    @property
    def noise_text(self) -> str:
        """The spread in words: a single measurement has none."""
        return f"{self.noise:.0%}" if len(self.values) > 1 else "1 run"


@dataclass(slots=True)
class Report:
    """All figures of one run, in order."""

    title: str
    figures: list[Figure] = field(default_factory=list)

    def add(self, figure: Figure) -> None:
        """Add a figure, or a repetition of one, and print a line immediately: a run takes minutes."""
        same = next((number for number, existing in enumerate(self.figures) if existing.name == figure.name), None)
        if same is None:
            self.figures.append(figure)
        else:
            self.figures[same] = replace(figure, values=(*self.figures[same].values, *figure.values))
        print(f"  {figure.name}: {short(figure.median)} {figure.unit}", flush=True)

    def figure(self, name: str) -> Figure:
        """The figure of this name. Raises KeyError if it was not measured."""
        for figure in self.figures:
            if figure.name == name:
                return figure
        raise KeyError(name)

    def ratio_text(self, figure: Figure) -> str:
        """The figure divided by the one to compare it with; of figures that took turns, with the noise of the turns'
        ratios in brackets. Empty if it is compared with none.
        """
        reference = self.figure(figure.against) if figure.against else None
        if reference is None:
            return ""
        text = f"{figure.median / reference.median:.2f}"
        if len(figure.values) == 1 or len(figure.values) != len(reference.values):
            return text
        turns = zip(figure.values, reference.values, strict=True)
        noise = Figure("", "", tuple(ours / theirs for ours, theirs in turns)).noise
        return f"{text} ({noise:.0%})"


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of them do not exceed."""
    ascending = sorted(values)
    return ascending[min(len(ascending) - 1, max(0, -(-len(ascending) * share // 1).__int__() - 1))]


def short(value: float) -> str:
    """The value with as many digits as a reader needs."""
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


def as_text(report: Report) -> str:
    """The table."""
    width = max((len(figure.name) for figure in report.figures), default=0)
    lines = [f"\n{report.title}", f"{'figure':{width}} {'median':>10} {'unit':8} {'noise':>6} {'ratio':>11}  wanted"]
    for figure in report.figures:
        value = f"{short(figure.median):>10} {figure.unit:8} {figure.noise_text:>6} {report.ratio_text(figure):>11}"
        lines.append(f"{figure.name:{width}} {value}  {figure.wanted}")
    lines.append("noise is (max - min) / median of the repetitions; a ratio is to the figure of the same run, in")
    lines.append("brackets the noise of the ratios of the turns: a ratio nearer to 1 than that says nothing")
    return "\n".join(lines)
