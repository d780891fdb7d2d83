"""Grouping of pre_bind calls for parallel execution. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from bowline.framework.binding.plugin import BindingPlugin, Preflight


@dataclass(frozen=True, slots=True)
class Group:
    """Plugins whose pre_bind runs concurrently."""

    plugins: tuple[BindingPlugin, ...]


def pre_bind_groups(answers: Sequence[tuple[BindingPlugin, Preflight]]) -> tuple[Group, ...]:
    """Split into groups: consecutive parallel plugins run together, any other alone.

    A skipped plugin is in no group, but still separates its neighbours unless it is parallel itself.
    """
    groups: list[list[BindingPlugin]] = []
    open_group = False
    for plugin, answer in answers:
        if not answer.parallel:
            open_group = False
        if answer.run:
            if open_group:
                groups[-1].append(plugin)
            else:
                groups.append([plugin])
            open_group = answer.parallel
    return tuple(Group(tuple(group)) for group in groups)
