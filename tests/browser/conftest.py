"""A real server in a process of its own and a real Chromium: skipped, with the reason, where there is none."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import ablation_rundirs
import pytest
import rundirs as _rundirs

ROOT = Path(__file__).resolve().parents[2]
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
START_S = 60
OpenPage = Callable[..., Any]


@pytest.fixture(scope="session")
def rundirs() -> ModuleType:
    return _rundirs


@pytest.fixture(scope="session")
def runs_root(tmp_path_factory: pytest.TempPathFactory, rundirs: ModuleType) -> Path:
    root = tmp_path_factory.mktemp("runs")
    rundirs.write_run(root, "plain", arms=("baseline", "sdd", "balance"), warnings=["Noisy."], traces=True)
    rundirs.write_run(root, "large", ranks=256, provenance="simulated")
    rundirs.write_run(root, "died", failure={"rank": 1, "reason": "killed by signal 9"})
    hostile = rundirs.HOSTILE
    rundirs.write_run(root, "evil", arms=("baseline", hostile), workload={"preset": hostile}, warnings=[hostile])
    write_ablation = ablation_rundirs.write_ablation
    write_ablation(root, "ablation")
    write_ablation(root, "ablation-of-few", blocks=2, seed=1)
    write_ablation(root, "ablation-wrong", wrong="overlap", world_size=4)
    return root


@pytest.fixture(scope="session")
def server(runs_root: Path) -> Iterator[str]:
    """The address of `freescale-bench dashboard` serving `runs_root` on a free port."""
    command = [sys.executable, "-m", "freescale.bench.cli", "dashboard", str(runs_root)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [*command, "--port", "0", "--no-open", "--json"], stdout=subprocess.PIPE, text=True, env=environment
    )
    watchdog = threading.Timer(START_S, process.kill)
    watchdog.start()
    assert process.stdout is not None
    line = process.stdout.readline()
    watchdog.cancel()
    if not line:
        pytest.fail(f"the dashboard did not start within {START_S} s")
    yield json.loads(line)["url"].rstrip("/")
    process.send_signal(signal.SIGINT)
    try:
        assert process.wait(10) == 0
    finally:
        process.kill()


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Chromium with a profile of its own."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    executable = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if executable is None:
        pytest.skip("no Chromium on this machine")
    with playwright.sync_playwright() as driver:
        context = driver.chromium.launch_persistent_context(
            tmp_path_factory.mktemp("profile"), executable_path=executable, args=ARGUMENTS, headless=True
        )
        context.set_default_timeout(30_000)
        yield context
        context.close()


@pytest.fixture
def open_page(chromium: Any) -> Iterator[OpenPage]:
    """`open_page(url, width=…, scheme=…)`. Fails the test when a page complained or asked another machine."""
    complaints: list[str] = []
    addresses: list[str] = []
    pages = []

    def open_at(url: str, width: int = 1280, scheme: str = "light") -> Any:
        page = chromium.new_page()
        pages.append(page)
        page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: addresses.append(request.url))
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        page.goto(url)
        return page

    yield open_at
    for page in pages:
        page.close()
    local = ("http://127.0.0.1:", "data:", "blob:", "file:///")
    assert [address for address in addresses if not address.startswith(local)] == []
    assert complaints == []
