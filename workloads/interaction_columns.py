"""Which column of an interaction log means what: given by the user, or recognised by its name or place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from freescale.errors import FreeScaleError

REQUIRED = ("user", "item", "timestamp")

_KNOWN_NAMES = {
    "user": ("user", "user_id", "userid", "uid", "session_id"),
    "item": ("item", "item_id", "itemid", "iid", "movieid", "movie_id", "video_id", "product_id"),
    "timestamp": ("timestamp", "time", "ts", "unixtime", "time_ms"),
    "category": ("category", "category_id", "cate_id", "genre"),
    "action": ("action", "action_type", "event", "event_type", "behavior", "behavior_type"),
    "surface": ("surface", "tab", "scene", "page"),
    "label": ("label", "click", "is_click", "clicked"),
    "rating": ("rating", "stars", "score"),
}

MEANINGS = tuple(_KNOWN_NAMES)

_RECBOLE_TYPES = ("token", "float", "token_seq", "float_seq")
_WITHOUT_HEADER = {3: ("user", "item", "timestamp"), 4: ("user", "item", "rating", "timestamp")}


def has_header(first_line: Sequence[str]) -> bool:
    """Whether the fields of a file's first line are names rather than numbers (MovieLens `u.data` has no names)."""
    return not all(_is_number(field) for field in first_line)


def numbered(columns: int) -> list[str]:
    """Names of the columns of a file without a header: "1", "2", ..."""
    return [str(number) for number in range(1, columns + 1)]


def resolve(file: str, names: Sequence[str], given: Mapping[str, str], header: bool) -> dict[str, int]:
    """Meaning -> place of its column.

    Args:
        file: for messages.
        names: the file's column names; typed ones (RecBole's `user_id:token`) may be given with or without the type.
        given: meaning -> column name, from the user; comes before recognition.
        header: whether the names are the file's own. Without a header, three columns are user, item, timestamp, and
            four user, item, rating, timestamp.

    Raises:
        FreeScaleError: a duplicated name, an unknown meaning, a name that is not there, or no column for the user,
            the item or the time.
    """
    plain = [_untyped(name) for name in names]
    for name in plain:
        if name and plain.count(name) > 1:
            raise FreeScaleError(
                f"{file}: column {name!r} is there {plain.count(name)} times, expected different names"
            )
    places = {}
    for meaning, name in given.items():
        if meaning not in _KNOWN_NAMES:
            raise FreeScaleError(f"column: no meaning {meaning!r}, expected one of {', '.join(MEANINGS)}")
        if _untyped(name) not in plain:
            raise FreeScaleError(f"{file}: no column {name!r} for the {meaning}; there are {_listed(plain)}")
        places[meaning] = plain.index(_untyped(name))
    if not header:
        by_place = _WITHOUT_HEADER.get(len(plain), ())
        places = {**{meaning: place for place, meaning in enumerate(by_place)}, **places}
    else:
        lowered = [name.lower() for name in plain]
        taken = set(places.values())
        for meaning, known in _KNOWN_NAMES.items():
            found = [lowered.index(name) for name in known if name in lowered and lowered.index(name) not in taken]
            if found:
                places.setdefault(meaning, found[0])
    for meaning in REQUIRED:
        if meaning not in places:
            what = "columns" if header else "no header line, and columns"
            raise FreeScaleError(
                f"{file}: no column for the {meaning} ({what} {_listed(plain)}); name it with --column {meaning}=NAME"
            )
    return places


def _untyped(name: str) -> str:
    base, _, kind = name.strip().rpartition(":")
    return base if base and kind in _RECBOLE_TYPES else name.strip()


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:12])
    return shown + (f" and {len(names) - 12} more" if len(names) > 12 else "")
