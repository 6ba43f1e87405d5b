"""Look at runs in the browser.

RUNS is a folder of run directories, or one run directory. The app is served on this machine only and needs no
network; stop it with Ctrl-C.
"""

from __future__ import annotations

import contextlib
import json
import webbrowser
from pathlib import Path

import click


@click.command("dashboard", help=__doc__)
@click.argument("runs", type=click.Path(path_type=Path), default="runs")
@click.option("--port", type=click.IntRange(0, 65535), default=8050, show_default=True, help="0 takes a free one.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--open/--no-open", "open_browser", default=True, show_default=True, help="Open a browser window.")
@click.option("--json", "as_json", is_flag=True, help="Print the address as one JSON object when ready.")
def command(runs: Path, port: int, host: str, open_browser: bool, as_json: bool) -> None:
    from dashboard.data import RunStore
    from dashboard.pages.links import run_link
    from dashboard.server import LOOPBACK, serve

    store = RunStore(runs)
    path = run_link(store.single) if store.single else "/"
    if host not in LOOPBACK:
        click.echo(f"Anyone who can reach {host} can read these runs; leave out --host to keep them here.", err=True)

    def ready(root: str) -> None:
        url = root.rstrip("/") + path
        click.echo(json.dumps({"url": url}) if as_json else f"Dashboard: {url}  (Ctrl-C to stop)")
        if open_browser:
            webbrowser.open(url)

    with contextlib.suppress(KeyboardInterrupt):
        serve(store, host, port, ready)
