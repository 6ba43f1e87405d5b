"""A run directory can be read while the run goes on writing it."""

from __future__ import annotations

import threading
from pathlib import Path

import pandas as pd

from analyzer import rundir


def test_a_table_that_is_replaced_all_the_time_is_read_whole(tmp_path: Path) -> None:
    rundir.write_json(tmp_path / rundir.MANIFEST, {"schema": rundir.SCHEMA, "complete": False})
    frames = [pd.DataFrame({"rows": [number] * number}) for number in (1, 5_000)]
    rundir.write_parquet(tmp_path / rundir.STEPS, frames[0])
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for frame in frames:
                rundir.write_parquet(tmp_path / rundir.STEPS, frame)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(200):
            rows = rundir.open_run(tmp_path).steps()["rows"]
            assert (rows == len(rows)).all()
    finally:
        stop.set()
        writer.join()
