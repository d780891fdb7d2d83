"""Grouping of pre_bind calls for parallel execution. Pure."""

from collections.abc import Sequence
from itertools import groupby

from bowline.framework.binding.plugin import BindingPlugin


def pre_bind_groups(plugins: Sequence[BindingPlugin]) -> tuple[tuple[BindingPlugin, ...], ...]:
    """Split the plugins that apply into groups: parallel neighbours run together, any other alone."""
    groups: list[tuple[BindingPlugin, ...]] = []
    for is_parallel, neighbours in groupby(plugins, key=lambda plugin: plugin.parallel):
        members = tuple(neighbours)
        groups += [members] if is_parallel else [(plugin,) for plugin in members]
    return tuple(groups)
