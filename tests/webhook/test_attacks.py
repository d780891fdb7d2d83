"""The real process, and callers without credentials that try to stop it.

Each attack is sent from one address. Requests from another address must be answered meanwhile, and the process must
survive every attack, with a peak of memory below the chart's limit.
"""

import asyncio
import contextlib
import re
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import yaml

from bowline.api.quantity import parse_quantity
from bowline_webhook.bodies import MAX_BODY, MAX_HELD
from bowline_webhook.hooks import Hook
from bowline_webhook.tls.ca import Leaf, to_pem
from tests.unit.webhook.reviews import encode, pod, review
from tests.waiting import LIMIT_S
from tests.webhook.process import Running, running
from tests.webhook.served import head

ROOT = Path(__file__).resolve().parents[2]
ATTACKER, CALLER = "127.0.0.66", "127.0.0.2"
SHARE = encode(review(pod({"gpu-fraction": "0.5"})))


def memory_limit() -> int:
    """Return the memory limit of the webhook's container in the chart."""
    values = yaml.safe_load((ROOT / "charts/bowline/values.yaml").read_text())
    return int(parse_quantity(values["webhook"]["resources"]["limits"]["memory"]))


@pytest.fixture(scope="module")
def process(leaf: Leaf, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("attacked")
    (folder / "tls.crt").write_bytes(to_pem([leaf.certificate]))
    (folder / "tls.key").write_bytes(leaf.private_key)
    flags = [f"--tls-cert-file={folder / 'tls.crt'}", f"--tls-private-key-file={folder / 'tls.key'}"]
    with running(folder, *flags) as webhook:
        webhook.wait_for_line("answering reviews")
        yield webhook


class Attack:
    """Connections of an attack, which have their own source address."""

    def __init__(self, port: int, metrics_port: int, trust: ssl.SSLContext) -> None:
        self.port, self.metrics_port, self.trust = port, metrics_port, trust
        self.writers: list[asyncio.StreamWriter] = []

    async def connect(self, source: str = ATTACKER) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a TLS connection from this address."""
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=self.trust, local_addr=(source, 0), limit=2**20
        )
        self.writers.append(writer)
        return reader, writer

    async def send(self, *parts: bytes, times: int) -> None:
        """Send this on so many connections; errors are ignored."""

        async def send_once() -> None:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(LIMIT_S):
                    _, writer = await self.connect()
                    for part in parts:
                        writer.write(part)
                        await writer.drain()

        for _ in range(0, times, 32):
            await asyncio.gather(*(send_once() for _ in range(32)))

    async def review_status(self, body: bytes = SHARE) -> int:
        """Send a review from the other address; returns the status."""
        async with asyncio.timeout(LIMIT_S):
            reader, writer = await self.connect(CALLER)
            writer.write(head(f"{Hook.MUTATE_PODS}?timeout=10s", len(body)) + body)
            return int((await reader.readline()).split()[1])


def with_head(body: bytes) -> bytes:
    return head(Hook.MUTATE_PODS, len(body)) + body


def filled_review(filler: str, size: int) -> bytes:
    """Return a review of a pod with a list of so many bytes."""
    return encode(review(pod(tolerations="HERE"))).replace(
        b'"HERE"', f"[{(filler + ',') * (size // (len(filler) + 1))}{filler}]".encode()
    )


def wrong_containers(count: int) -> bytes:
    return encode(review(pod(containers=[1] * count)))


def devices(count: int) -> bytes:
    limits = {f"nvidia.com/mig-{i}": "0.5" for i in range(count)}
    return encode(review(pod(containers=[{"name": "m", "resources": {"limits": limits}}])))


def long_strings() -> bytes:
    """Return the largest body, in which each character takes four bytes of memory."""
    return encode(review(pod({"note": "\U0001f600" + "x" * (MAX_BODY - 2000)})))


@pytest.fixture
async def attack(process: Running, leaf: Leaf) -> AsyncIterator[Attack]:
    trust = ssl.create_default_context(cadata=to_pem([leaf.signer]).decode())
    metrics = process.wait_for_line("serving probes and metrics")["address"].rpartition(":")[2]
    attack = Attack(process.port, int(metrics), trust)
    yield attack
    for writer in attack.writers:
        writer.transport.abort()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(1):
                await writer.wait_closed()
    assert process.popen.poll() is None, "the process has exited"


@pytest.mark.parametrize(
    ("parts", "times"),
    [
        pytest.param((head(f"{Hook.MUTATE_PODS}?timeout=30s", 10),), 600, id="heads without their bodies"),
        pytest.param((b"GET / HTTP/1.1\r\n\r\n" * 10_000,), 64, id="pipelined requests"),
        pytest.param((head(Hook.MUTATE_PODS, MAX_BODY), b"x" * (MAX_BODY - 1)), MAX_HELD // MAX_BODY * 8,
            id="bodies without the last byte"),
        pytest.param((with_head(wrong_containers(70_000)) * 20,), 64, id="errors that are not read"),
        pytest.param((with_head(filled_review('{"a":1}', 450_000)),), 64, id="as many values as are decoded"),
        pytest.param((with_head(long_strings()),), 64, id="wide characters"),
        pytest.param((with_head(devices(30_000)),), 32, id="thousands of resources"),
    ],
)  # fmt: skip
async def test_another_caller_is_answered_during(attack: Attack, parts: tuple[bytes, ...], times: int) -> None:
    sending = asyncio.create_task(attack.send(*parts, times=times))
    assert await attack.review_status() == 200
    await sending
    assert await attack.review_status() == 200
    assert await attack.review_status(encode(review(pod({"note": "x" * 500_000})))) == 200


async def test_denials_are_logged_with_the_callers_address_and_at_a_limited_rate(
    attack: Attack, process: Running
) -> None:
    denial = encode(review(pod({"gpu-fraction": "two"}), name="forged"))
    for _ in range(2):  # the second one reports what the first has omitted
        reader, writer = await attack.connect(CALLER)
        writer.write(with_head(denial) * 2000)
        for _ in range(2000):
            await reader.readuntil(b"HTTP/1.1 200")
        writer.close()
    lines = [line for line in process.lines() if line.get("object") == "forged"]
    assert 0 < len(lines) < 2000
    assert {line["peer"] for line in lines} == {CALLER}
    omissions = [line["omitted"] for line in process.lines() if "omitted" in line]
    assert omissions


async def test_another_caller_is_answered_during_thousands_of_connections_without_a_byte(attack: Attack) -> None:
    for _ in range(0, 3000, 100):
        with contextlib.suppress(OSError):
            connections = await asyncio.gather(
                *(asyncio.open_connection("127.0.0.1", attack.port, local_addr=(ATTACKER, 0)) for _ in range(100)),
                return_exceptions=True,
            )
            attack.writers += [connection[1] for connection in connections if isinstance(connection, tuple)]
    assert await attack.review_status() == 200


async def test_another_caller_is_answered_while_metrics_are_scraped_without_end(attack: Attack) -> None:
    stop = asyncio.Event()

    async def scrape() -> None:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", attack.metrics_port)
            attack.writers.append(writer)
            while not stop.is_set():
                writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 20)
                await reader.read(2**16)

    scraping = [asyncio.create_task(scrape()) for _ in range(50)]
    for _ in range(20):
        assert await attack.review_status() == 200
    stop.set()
    for task in scraping:
        task.cancel()
    await asyncio.gather(*scraping, return_exceptions=True)


def test_no_line_of_the_log_is_long_and_nothing_crashed(process: Running) -> None:
    assert max(map(len, process.log.read_text().split("\n"))) < 10_000
    assert not [line for line in process.lines() if "traceback" in line]


def test_the_peak_memory_is_below_the_limit(process: Running) -> None:
    status = Path(f"/proc/{process.popen.pid}/status").read_text()
    peak = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert peak is not None
    assert int(peak[1]) * 1024 < memory_limit() * 3 // 4, "leaves a reserve for later releases"
