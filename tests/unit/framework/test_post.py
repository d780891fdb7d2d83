"""A Binding that nobody answers: nobody's failure, and remembered, for it may still take effect."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from shared.api.bindrequest import decode_bind_request
from shared.framework.binding.context import BindContext
from shared.framework.binding.post import bind_by_post
from shared.framework.binding.runner import Runner
from shared.framework.config import Settings
from shared.framework.plugin import Budgets, Plugin, PluginConfig
from shared.framework.status import Code, Status
from shared.kube.client import KubeClient
from shared.plugins.default_binder import DefaultBinder
from shared.testing.builders import bind_request, pod, stored
from shared.testing.clock import START, SteppedClock
from tests.unit.framework.test_runner import Seen

pytestmark = pytest.mark.looptime


class Unanswered(KubeClient):
    """Sends nothing; whatever it is asked for, no answer comes."""

    def __init__(self) -> None:
        self.clock = SteppedClock()

    async def create(self, *args: Any, **options: Any) -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError("cancelled before that")


class SlowBinder(DefaultBinder):
    """Has something else to do first, and too little time left for the POST."""

    name = "slow_binder"

    async def bind(self, c: BindContext) -> Status:
        await asyncio.sleep(Budgets().call_s - 1)
        return await bind_by_post(c)


@pytest.mark.parametrize(
    ("binder", "code"),
    [
        pytest.param(DefaultBinder, Code.INFRA, id="in all the time there is"),
        pytest.param(SlowBinder, Code.RETRY, id="in the time that a plugin has left for it"),
    ],
)
async def test_a_binding_without_an_answer_is_remembered(binder: Callable[..., Plugin], code: Code) -> None:
    request = decode_bind_request(stored(bind_request(uid="pod-uid"), uid="request-uid"))
    log = logging.LoggerAdapter(logging.getLogger(__name__))
    c = BindContext(request, stored(pod(), uid="pod-uid"), None, 1, "a", START, Unanswered(), log)
    status = await Runner([binder(PluginConfig(), Settings())], Seen()).run_bind(c)
    assert c.posts.last_unknown == START
    assert status.code is code
