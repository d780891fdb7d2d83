"""Mistakes in the methods of a plugin's class are errors at start; each names the method and the remedy."""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from shared.framework.interface import HOOKS, interface_errors
from shared.framework.plugin import Plugin
from shared.framework.status import Status
from shared.plugins.catalog import BUILTINS


async def coroutine(self: Any, ctx: Any) -> Status:
    return Status.ok()


def synchronous(self: Any, ctx: Any) -> Status:
    return Status.ok()


async def without_context(self: Any) -> Status:
    return Status.ok()


async def with_a_default(self: Any, ctx: Any, times: int = 1) -> Status:
    return Status.ok()


async def with_any_arguments(*arguments: Any) -> Status:
    return Status.ok()


async def with_two_arguments(self: Any, ctx: Any, why: Status) -> Status:
    return Status.ok()


def effects(self: Any, request: Any) -> bool:
    return True


class Mixin:
    """A hook of a class that is no plugin."""

    def pre_bind(self, ctx: Any) -> Status:
        return Status.ok()


def plugin(members: Mapping[str, Any], bases: Iterable[type] = ()) -> type[Plugin]:
    return type("Example", (*bases, Plugin), {"name": "example", **members})


@pytest.mark.parametrize(
    ("members", "parts"),
    [
        pytest.param({"prebind": coroutine}, ("`prebind`", "`pre_bind`"), id="a misspelt hook"),
        pytest.param({"on_filure": synchronous}, ("`on_filure`", "`on_failure`"), id="a letter is missing"),
        pytest.param({"frobnicate": synchronous}, ("`frobnicate`", "underscore"), id="a helper with a public name"),
        pytest.param({"helper": staticmethod(effects)}, ("`helper`", "underscore"), id="a static helper"),
        pytest.param({"pre_bind": synchronous}, ("`pre_bind`", "async def"), id="sync in place of async"),
        pytest.param({"preflight": coroutine}, ("`preflight`", "`def`"), id="async in place of sync"),
        pytest.param({"bind": without_context}, ("bind(self, ctx)",), id="an argument is missing"),
        pytest.param({"bind": with_two_arguments}, ("bind(self, ctx)",), id="an argument too many"),
        pytest.param({"pre_bind": Status.ok()}, ("`pre_bind`", "no method"), id="a value in place of a method"),
        pytest.param({"rollback": with_two_arguments}, ("`rollback`", "`has_side_effects`"), id="no side effects"),
    ],
)
def test_a_mistake_is_an_error_with_its_remedy(members: Mapping[str, Any], parts: tuple[str, ...]) -> None:
    (error,) = interface_errors(plugin(members))
    assert all(part in error for part in parts), error


def test_a_hook_of_a_mixin_is_checked() -> None:
    assert len(interface_errors(plugin({}, (Mixin,)))) == 1


@pytest.mark.parametrize(
    "members",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"pre_bind": coroutine, "_helper": synchronous}, id="a private helper"),
        pytest.param({"bind": with_a_default}, id="an argument with a default"),
        pytest.param({"bind": with_any_arguments}, id="any arguments"),
        pytest.param({"rollback": with_two_arguments, "has_side_effects": effects}, id="a rollback and its effects"),
        pytest.param({"size": 3, "Args": dict}, id="class attributes"),
    ],
)
def test_valid_classes_have_no_error(members: Mapping[str, Any]) -> None:
    assert interface_errors(plugin(members)) == []


def test_the_built_in_plugins_have_no_error() -> None:
    assert [(builtin.plugin.name, interface_errors(builtin.plugin)) for builtin in BUILTINS] == [
        (builtin.plugin.name, []) for builtin in BUILTINS
    ]


def test_every_method_of_the_interface_is_a_hook() -> None:
    assert {"mutate_pod", "validate_pod", "pre_bind", "bind", "post_bind", "rollback", "routes"} <= HOOKS
