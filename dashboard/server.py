"""Serves the app on this machine: quiet, one thread per request, loopback unless told otherwise."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable

from werkzeug.serving import BaseWSGIServer, make_server

from analyzer.errors import AnalyzerError
from dashboard.app import create_app
from dashboard.data import RunStore

LOOPBACK = ("127.0.0.1", "::1", "localhost")


def serve(store: RunStore, host: str, port: int, on_ready: Callable[[str], None]) -> None:
    """Serve until interrupted; arguments as in `listen`.

    Args:
        on_ready: called once with the address, as soon as connections are accepted.
    """
    server = listen(store, host, port)
    shown = f"[{host}]" if ":" in host else host
    on_ready(f"http://{shown}:{server.server_port}/")
    try:
        server.serve_forever()
    finally:
        server.server_close()


def listen(store: RunStore, host: str, port: int) -> BaseWSGIServer:
    """A server that accepts connections; `serve_forever` answers them, `shutdown` ends that.

    Args:
        host: address to bind; on a loopback one, requests that name another host are refused, so that no web page
            elsewhere can reach the app by pointing its own name at this machine.
        port: 0 takes a free one.

    Raises:
        AnalyzerError: the port is taken or not allowed.
    """
    app = create_app(store)
    if host in LOOPBACK:
        app.server.config["TRUSTED_HOSTS"] = list(LOOPBACK)
    _claim(host, port)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    return make_server(host, port, app.server, threaded=True)


def _claim(host: str, port: int) -> None:
    """Fail with a sentence when the port cannot be bound: werkzeug itself prints and exits."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except (OSError, OverflowError) as error:
        raise AnalyzerError(
            f"Cannot listen on {host}:{port} ({error}); choose another with --port, or --port 0"
        ) from error
