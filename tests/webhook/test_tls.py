"""The certificate of a running listener: replaced under load; and client certificates."""

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import pytest

from bowline.localcluster.certs import Identity, LocalAuthority, write_pair
from bowline_webhook.hooks import Hook
from bowline_webhook.server import AdmissionServer
from bowline_webhook.tls.ca import make_authority, sign_leaf, to_pem
from bowline_webhook.tls.serving import CertificateError, ServingContext
from tests.unit.webhook.chains import marking
from tests.unit.webhook.reviews import encode, pod, review
from tests.webhook.served import JSON, Served

POD = encode(review(pod()))
LIFE = timedelta(days=1)


async def review_over_tls(url: str, trust: ssl.SSLContext) -> int:
    """Send a review on a new connection; returns the status."""
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as client,
        client.post(f"{url}{Hook.VALIDATE_PODS}", data=POD, headers=JSON) as answer,
    ):
        await answer.read()
        return answer.status


async def test_no_handshake_or_connection_fails_while_certificates_are_replaced(listener: Served) -> None:
    now = datetime.now(UTC)
    first, second = make_authority(now, LIFE), make_authority(now, LIFE)
    trust = ssl.create_default_context(cadata=to_pem([first.certificate, second.certificate]).decode())
    leaves = [sign_leaf(signer, ["127.0.0.1"], now, LIFE) for signer in (first, second) * 20]
    # A connection that is open stays valid, whichever certificate it was opened under.
    answer = await listener.review(Hook.VALIDATE_PODS, review(pod()))
    assert answer["allowed"]
    listener.serving.swap(leaves[0].pem())
    url = f"https://{listener.server.address}"
    stop = asyncio.Event()

    async def ask() -> list[int]:
        statuses = []
        while not stop.is_set():
            statuses.append(await review_over_tls(url, trust))
        return statuses

    asking = [asyncio.create_task(ask()) for _ in range(2)]
    for leaf in leaves:
        listener.serving.swap(leaf.pem())
        with pytest.raises(CertificateError):
            listener.serving.swap(to_pem([leaf.certificate]) + leaves[0].private_key[:-50])
        await asyncio.sleep(0.005)  # for handshakes with this certificate
    stop.set()
    statuses = [status for caller_statuses in await asyncio.gather(*asking) for status in caller_statuses]
    assert set(statuses) == {200}
    assert (await listener.review(Hook.VALIDATE_PODS, review(pod())))["allowed"]


@pytest.mark.parametrize(
    ("version", "allowed_names"),
    [
        pytest.param(ssl.TLSVersion.TLSv1_2, (), id="TLS 1.2, any name"),
        pytest.param(ssl.TLSVersion.TLSv1_3, ("kube-apiserver", "other"), id="TLS 1.3, two names"),
    ],
)
async def test_callers_need_a_certificate_of_the_client_ca_with_an_allowed_name(
    listener: Served, tmp_path: Path, version: ssl.TLSVersion, allowed_names: tuple[str, ...]
) -> None:
    ours, theirs, now = LocalAuthority(), LocalAuthority("other-ca"), datetime.now(UTC)
    signer = make_authority(now, LIFE)
    serving = ServingContext(ours.pem)
    serving.swap(sign_leaf(signer, ["127.0.0.1"], now, LIFE).pem())
    listen = listener.server.address
    server = AdmissionServer(listen, serving.context, marking(), listener.metrics, allowed_names=allowed_names)
    await listener.server.stop()
    await server.start()

    async def is_answered(known_to: LocalAuthority | None, name: str = "kube-apiserver") -> bool:
        trust = ssl.create_default_context(cadata=to_pem([signer.certificate]).decode())
        trust.maximum_version = version
        if known_to is not None:
            trust.load_cert_chain(*write_pair(tmp_path, "caller", known_to.client(Identity(name))))
        try:
            return await review_over_tls(f"https://{server.address}", trust) == 200
        except (aiohttp.ClientError, OSError):
            return False

    try:
        assert [await is_answered(authority) for authority in (ours, theirs, None)] == [True, False, False]
        assert await is_answered(ours, "system:node:n1") is not bool(allowed_names)
        serving.set_client_ca(theirs.pem)
        assert [await is_answered(authority) for authority in (theirs, ours)] == [True, False]
    finally:
        await server.stop()
