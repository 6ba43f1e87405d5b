"""Addresses of pages, both ways: what a link says, and what an address means."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, unquote, urlencode

COMPARE = "compare"


@dataclass(frozen=True)
class Address:
    """A parsed address. `run` is None for the list of runs and for COMPARE; `page` is "" for the Overview of a run;
    None means no such page."""

    run: str | None = None
    page: str | None = ""
    query: dict[str, str] = field(default_factory=dict)


def run_link(run: str, page: str = "", **query: str) -> str:
    """/run/<name>[/<page>][?…], every part percent-encoded."""
    path = f"/run/{quote(run, safe='')}" + (f"/{page}" if page else "")
    return f"{path}?{urlencode(query)}" if query else path


def compare_link(a: str = "", b: str = "", *, force: bool = False) -> str:
    """/compare?a=<name>&b=<name>; what is not chosen yet is left out."""
    query = {name: value for name, value in (("a", a), ("b", b), ("force", "1" if force else "")) if value}
    return f"/{COMPARE}?{urlencode(query)}" if query else f"/{COMPARE}"


def parse(pathname: str | None, search: str | None) -> Address:
    """What an address asks for. Names are taken as they are: whether a run of that name exists is for the store."""
    query = dict(parse_qsl((search or "").lstrip("?"), keep_blank_values=True))
    parts = [unquote(part) for part in (pathname or "/").split("/") if part]
    if not parts:
        return Address(query=query)
    if parts == [COMPARE]:
        return Address(page=COMPARE, query=query)
    if parts[0] == "run" and len(parts) in (2, 3):
        return Address(parts[1], parts[2] if len(parts) == 3 else "", query)
    return Address(page=None)
