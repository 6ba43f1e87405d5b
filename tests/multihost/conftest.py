"""Two hosts on one machine: network namespaces with names of their own, joined by a cable of 1 Gb/s."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
ADDRESSES = ("192.0.2.1", "192.0.2.2")  # set aside for documentation: nobody's
NAMES = ("node-a", "node-b")
GIGABITS_PER_S = 1.0


class TwoHosts:
    """`torchrun` on both; each call has its own rendezvous port."""

    def __init__(self, tag: str, folder: Path) -> None:
        self._tag = tag
        self._names = folder / "hosts"
        known = [("127.0.0.1", "localhost"), *zip(ADDRESSES, NAMES, strict=True)]
        self._names.write_text("".join(f"{address} {name}\n" for address, name in known))
        self._port = 29700

    def torchrun(
        self, program: Sequence[str], folder: Path, ranks_per_host: int = 1, timeout_s: float = 90
    ) -> list[str]:
        """Run the program on both hosts; what each host's launcher and ranks printed. Fails with it when one fails."""
        self._port += 1
        processes = []
        for host in range(2):
            log = open(folder / f"{NAMES[host]}.log", "w")  # noqa: SIM115 (closed below, with its process)
            launcher = [
                *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"),
                *("--nproc-per-node", str(ranks_per_host), "--rdzv-backend", "c10d", "--rdzv-id", str(self._port)),
                *("--rdzv-endpoint", f"{ADDRESSES[0]}:{self._port}", "--local-addr", ADDRESSES[host], *program),
            ]
            process = subprocess.Popen(
                [*self._inside(host), *launcher],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                start_new_session=True,
                env=os.environ
                | {"PYTHONPATH": str(REPOSITORY), "GLOO_SOCKET_IFNAME": f"{self._tag}{host}", "OMP_NUM_THREADS": "1"},
            )
            processes.append((process, log))
        try:
            codes = [process.wait(timeout_s) for process, _ in processes]
        except subprocess.TimeoutExpired:
            codes = [None]
        finally:
            for process, log in processes:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                log.close()
        said = [(folder / f"{name}.log").read_text() for name in NAMES]
        if any(codes) or None in codes:
            pytest.fail(
                "\n".join(f"--- {name}: exit {codes}\n{text[-5000:]}" for name, text in zip(NAMES, said, strict=True))
            )
        return said

    def _inside(self, host: int) -> list[str]:
        """Prefix that runs a command on one host; the shell gives the host its name."""
        namespaces = ["ip", "netns", "exec", f"{self._tag}-{host}", "unshare", "--uts", "--pid", "--fork"]
        named = f'hostname {NAMES[host]} && mount --bind {self._names} /etc/hosts && exec "$@"'
        return [*namespaces, "--kill-child", "--mount-proc", "sh", "-c", named, "sh"]


@pytest.fixture(scope="session")
def two_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoHosts]:
    """Skips where namespaces or the shaped cable cannot be made, saying which."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces take root")
    for tool in ("ip", "tc", "unshare", "hostname"):
        if not shutil.which(tool):
            pytest.skip(f"network namespaces take {tool} (Debian: iproute2, util-linux, hostname)")
    tag = f"fs{os.getpid() % 100_000}x"
    try:
        for command in _cable(tag):
            done = subprocess.run(command.split(), capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"`{command}` failed: {done.stderr.strip()}")
        yield TwoHosts(tag, tmp_path_factory.mktemp("two-hosts"))
    finally:
        for host in range(2):
            subprocess.run(["ip", "netns", "del", f"{tag}-{host}"], capture_output=True)


def _cable(tag: str) -> list[str]:
    commands = [f"ip netns add {tag}-0", f"ip netns add {tag}-1", f"ip link add {tag}0 type veth peer name {tag}1"]
    for host in range(2):
        space = f"{tag}-{host}"
        commands += [
            f"ip link set {tag}{host} netns {space}",
            f"ip -n {space} addr add {ADDRESSES[host]}/24 dev {tag}{host}",
            f"ip -n {space} link set lo up",
            f"ip -n {space} link set {tag}{host} up",
            f"tc -n {space} qdisc add dev {tag}{host} root tbf rate {GIGABITS_PER_S}gbit burst 128kb latency 50ms",
        ]
    return commands
