"""Starts the node inside its namespaces: mounts, network, control plane, containerd, kubelet and kube-proxy.

Process 1 there is a shell that reaps orphans and ends with this process. This one forwards connections from the
host's loopback address to the API server and executes commands from a socket:

    stop NAME    SIGTERM, then SIGKILL after 10 s
    kill NAME    SIGKILL
    start NAME   start it again with the same arguments

It makes no decisions about the cluster; tests do that through the API server.
"""

import asyncio
import json
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path

from tests.localnode.settings import NODE_ADDRESS, NODE_NAME, SYSCTLS, NodeLayout

_STOP_S = 10.0
_START_S = 120.0
_CHUNK = 1 << 16


class Boot:
    """The node's processes and their control from outside."""

    def __init__(self, root: Path, listener: socket.socket) -> None:
        self._node = NodeLayout(root)
        self._listener = listener
        self._plan = json.loads(self._node.plan.read_text())
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._began = time.monotonic()

    async def run(self) -> None:
        """Set everything up, then serve until SIGTERM."""
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, stop.set)
        try:
            mount_all(self._node)
            connect_network()
            self._log("namespaces are ready")
            await self._start_all()
        except Exception:
            self._node.failure_report.write_text(traceback.format_exc())
            raise
        forward = await asyncio.start_server(self._forward, sock=self._listener)
        control = await asyncio.start_unix_server(self._command, str(self._node.control_socket))
        self._node.ready.touch()
        async with forward, control:
            await stop.wait()

    async def _start_all(self) -> None:
        for name in ("etcd", "kube-apiserver", "containerd"):
            self._start(name)
        await self._answers([*self._plan["ctr"], "version"], "containerd")
        for archive in self._plan["images"]:
            await self._run([*self._plan["ctr"], "-n", "k8s.io", "images", "import", archive])
        self._log("images are imported")
        await self._answers([*self._plan["kubectl"], "get", "--raw", "/readyz"], "kube-apiserver")
        self._log("the API server is ready")
        for name in self._plan["processes"]:
            if name not in self._processes:
                self._start(name)

    def _start(self, name: str) -> None:
        log = self._node.root / "logs" / f"{name}.log"
        with log.open("ab") as out:
            argv = self._plan["processes"][name]
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
        self._processes[name] = process

    async def _answers(self, command: list[str], name: str) -> None:
        deadline = time.monotonic() + _START_S
        while await self._exit_code(command) != 0:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"{name} is not ready after {_START_S:g} s; its log is in {self._node.root / 'logs'}"
                )
            if self._processes[name].poll() is not None:
                raise ChildProcessError(f"{name} ended; its log is in {self._node.root / 'logs'}")
            await asyncio.sleep(0.1)

    async def _run(self, command: list[str]) -> None:
        code = await self._exit_code(command)
        if code != 0:
            raise ChildProcessError(f"{' '.join(command)} ended with {code}")

    async def _exit_code(self, command: list[str]) -> int:
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return await asyncio.wait_for(process.wait(), _START_S)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = self._listener.getsockname()[1]
        try:
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(copy(reader, inner_writer), copy(inner_reader, writer))

    async def _command(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        verb, _, name = (await reader.readline()).decode().strip().partition(" ")
        answer = "done"
        try:
            match verb:
                case "stop":
                    await self._end(name, signal.SIGTERM)
                case "kill":
                    await self._end(name, signal.SIGKILL)
                case "start":
                    self._start(name)
                case _:
                    answer = f"failed: unknown command {verb!r}"
        except (KeyError, ValueError, OSError, TimeoutError) as error:
            answer = f"failed: {error!r}"
        writer.write(f"{answer}\n".encode())
        await writer.drain()
        writer.close()

    async def _end(self, name: str, number: signal.Signals) -> None:
        process = self._processes[name]
        process.send_signal(number)
        try:
            await asyncio.to_thread(process.wait, _STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait)

    def _log(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:6.1f} s  {text}", flush=True)


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy one direction of a connection until it ends."""
    with suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
    with suppress(OSError):
        writer.close()


def mount_all(node: NodeLayout) -> None:
    """Mount what the node modifies: cgroups, /proc, overlays of /etc and /var, files over the machine's sysctls."""
    run("mount", "--make-rprivate", "/")
    run("mount", "-t", "proc", "proc", "/proc")
    run("mount", "-t", "sysfs", "sysfs", "/sys")
    mount_cgroups(Path("/proc/self/cgroup").read_text())
    for name in ("var", "etc"):
        over = node.folder / "overlay" / name
        for part in ("upper", "work"):
            (over / part).mkdir(parents=True)
        options = f"lowerdir=/{name},upperdir={over / 'upper'},workdir={over / 'work'}"
        run("mount", "-t", "overlay", "overlay", "-o", options, f"/{name}")
    run("mount", "-t", "tmpfs", "tmpfs", "/run")
    Path("/run/lock").mkdir()
    shutil.rmtree("/var/lib/kubelet", ignore_errors=True)
    Path("/var/lib/kubelet").mkdir()
    for name, value in SYSCTLS.items():
        file = node.folder / "sysctl" / name.replace("/", ".")
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"{value}\n")
        run("mount", "--bind", str(file), f"/proc/sys/{name}")
    # kubelet shares volumes with containers by mount propagation.
    run("mount", "--make-rshared", "/")


def mount_cgroups(memberships: str) -> None:
    """Mount the hierarchies that the machine uses; a cgroup namespace shows only the node's part of each."""
    mount = Path("/sys/fs/cgroup")
    lines = [line.split(":", 2) for line in memberships.splitlines()]
    if [hierarchy for hierarchy, _, _ in lines] == ["0"]:
        run("mount", "-t", "cgroup2", "cgroup2", str(mount))
        return
    run("mount", "-t", "tmpfs", "tmpfs", str(mount))
    for hierarchy, controllers, _ in lines:
        folder = mount / ("unified" if hierarchy == "0" else controllers.removeprefix("name="))
        folder.mkdir()
        if hierarchy == "0":
            run("mount", "-t", "cgroup2", "cgroup2", str(folder))
        else:
            options = f"none,{controllers}" if controllers.startswith("name=") else controllers
            run("mount", "-t", "cgroup", "-o", options, "cgroup", str(folder))


def connect_network() -> None:
    """Set up the network: a bridge is the node's interface; the namespace has no external connection."""
    socket.sethostname(NODE_NAME)
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "node0", "type", "bridge")
    run("ip", "addr", "add", f"{NODE_ADDRESS}/24", "dev", "node0")
    run("ip", "link", "set", "node0", "up")
    run("ip", "route", "add", "default", "dev", "node0")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1\n")
    bridge_setting = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
    if bridge_setting.exists():
        bridge_setting.write_text("1\n")


def run(*command: str) -> None:
    """Run a command. Raises ChildProcessError with its error output."""
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise ChildProcessError(f"{' '.join(command)}: {result.stderr.strip()}")


if __name__ == "__main__":
    asyncio.run(Boot(Path(sys.argv[1]), socket.socket(fileno=int(sys.argv[2]))).run())
