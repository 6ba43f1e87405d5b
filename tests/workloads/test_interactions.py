"""Interaction logs: what is read, how it is cut into samples, and how a bad file is refused."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from freescale.errors import FreeScaleError
from workloads.interaction_log import InteractionLog, read_interactions
from workloads.losses import bce_sum
from workloads.registry import Workload, build, preset


def tiny_on(file: Path, **changes: object) -> Workload:
    columns = changes.pop("columns", None)
    config = replace(preset("hstu-tiny"), **{"samples_per_rank": 2, "max_candidates": 4, **changes})  # type: ignore[arg-type]
    return build(config, seed=0, data=str(file), columns=columns)  # type: ignore[arg-type]


def written(folder: Path, name: str, text: str | bytes) -> Path:
    file = folder / name
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return file


def random_log(events: int, users: int, seed: int = 0) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "user_id": draw.integers(0, users, events) + 100,
            "item_id": draw.integers(0, 50, events) * 7,
            "rating": draw.integers(1, 6, events),
            "timestamp": draw.permutation(events) * 60 + 1_500_000_000,
        }
    )


ROWS = [(1, 31, 5, 880), (2, 32, 1, 870), (1, 33, 2, 890), (1, 31, 4, 900), (2, 34, 3, 875)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("u.data", "".join(f"{u}\t{i}\t{r}\t{t}\n" for u, i, r, t in ROWS)),
        ("ratings.dat", "".join(f"{u}::{i}::{r}::{t}\n" for u, i, r, t in ROWS)),
        ("ratings.csv", "userId,movieId,rating,timestamp\n" + "".join(f"{u},{i},{r}.0,{t}\n" for u, i, r, t in ROWS)),
        (
            "ml.inter",
            "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
            + "".join(f"{u}\t{i}\t{r}\t{t}.0\n" for u, i, r, t in ROWS),
        ),
        (
            "windows.csv",
            "\ufeffuser;item;rating;timestamp\r\n\r\n" + "".join(f"{u};{i};{r};{t}\r\n" for u, i, r, t in ROWS),
        ),
        ("quoted.csv", '"user","item","rating","time"\n' + "".join(f'"{u}","{i}",{r},{t}\n' for u, i, r, t in ROWS)),
    ],
)
def test_movielens_and_recbole_files_work_as_they_are(tmp_path: Path, name: str, text: str) -> None:
    log = read_interactions(str(written(tmp_path, name, text)), {})
    assert log.time.tolist() == [870, 875, 880, 890, 900]
    assert log.user.tolist() == [1, 1, 0, 0, 0]  # numbered as they first appear in the file
    assert log.features["item"].tolist() == [1, 3, 0, 2, 0]
    assert log.rating is not None
    assert log.rating.tolist() == [1, 3, 5, 2, 4]
    assert log.features["action"].tolist() == [0, 2, 4, 1, 3]  # without an action column, the rating's step
    assert (log.users, log.rows) == (2, {"item": 4, "action": 5})


def test_columns_can_be_named(tmp_path: Path) -> None:
    text = "who,what,kind,when,did,tab,liked\n" + "".join(f"u{u},i{i},k{i % 2},{t},a{r},0,1\n" for u, i, r, t in ROWS)
    names = {"user": "who", "item": "what", "category": "kind", "timestamp": "when", "action": "did", "label": "liked"}
    log = read_interactions(str(written(tmp_path, "log.csv", text)), names)
    assert log.rows == {"item": 4, "category": 2, "action": 5, "surface": 1}
    assert log.label is not None
    assert log.label.tolist() == [1] * 5


def test_columns_of_a_file_without_header_are_named_by_number(tmp_path: Path) -> None:
    text = "".join(f"{t} {r} {u} {i} 1\n".replace(" ", ",") for u, i, r, t in ROWS)
    names = {"timestamp": "1", "user": "3", "item": "4"}
    log = read_interactions(str(written(tmp_path, "log.csv", text)), names)
    assert log.time.tolist() == [870, 875, 880, 890, 900]
    assert log.features["item"].tolist() == [1, 3, 0, 2, 0]


def test_parquet_and_text_give_the_same_log(tmp_path: Path) -> None:
    frame = random_log(500, 10)
    frame.to_csv(tmp_path / "log.csv", index=False)
    frame.assign(
        timestamp=pd.to_datetime(frame["timestamp"], unit="s"), user_id=frame["user_id"].astype(str).astype("category")
    ).to_parquet(tmp_path / "log.parquet")
    text, parquet = (read_interactions(str(tmp_path / name), {}) for name in ("log.csv", "log.parquet"))
    assert np.array_equal(text.time, parquet.time)
    assert np.array_equal(text.user, parquet.user)
    assert np.array_equal(text.features["item"], parquet.features["item"])


@pytest.mark.parametrize("factor", [1, 10**3, 10**6, 10**9])
def test_times_in_any_common_unit_become_seconds(tmp_path: Path, factor: int) -> None:
    text = "user,item,timestamp\n" + "".join(f"1,{i},{(1_600_000_000 + i) * factor}\n" for i in range(5))
    log = read_interactions(str(written(tmp_path, "log.csv", text)), {})
    assert log.time.tolist() == [1_600_000_000 + i for i in range(5)]


def test_many_different_ratings_become_at_most_64_actions(tmp_path: Path) -> None:
    rating = np.random.default_rng(0).normal(size=1_000)
    frame = pd.DataFrame({"user": 1, "item": 1, "timestamp": np.arange(1_000), "rating": rating})
    frame.to_csv(tmp_path / "log.csv", index=False)
    log = read_interactions(str(tmp_path / "log.csv"), {})
    action = log.features["action"]
    assert log.rows["action"] == 64
    assert np.bincount(action).tolist() == pytest.approx([1_000 / 64] * 64, abs=1)
    assert (np.diff(action[np.argsort(rating)]) >= 0).all()


def expected_samples(log: InteractionLog, min_history: int, max_history: int, events: int) -> list[tuple[list, list]]:
    """(history rows, next rows) of the log's samples, user by user, then in the order of their last event."""
    samples = []
    for user in range(log.users):
        rows = np.flatnonzero(log.user == user).tolist()
        for start in range(min_history, len(rows), events):
            samples.append((rows[max(0, start - max_history) : start], rows[start : start + events]))
    return sorted(samples, key=lambda sample: log.time[sample[1][-1]])


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    events=st.integers(30, 200),
    users=st.integers(1, 12),
    ranks=st.integers(1, 3),
    min_history=st.integers(0, 3),
    max_history=st.integers(3, 8),
    run=st.integers(2, 5),
)
def test_samples_are_runs_of_each_users_events_after_their_history_in_time_order(
    tmp_path: Path, events: int, users: int, ranks: int, min_history: int, max_history: int, run: int
) -> None:
    file = tmp_path / "log.csv"
    random_log(events, users).to_csv(file, index=False)
    config = replace(
        preset("hstu-tiny"), samples_per_rank=2, max_candidates=run, min_history=min_history, max_history=max_history
    )
    workload, log = build(config, 0, str(file)), read_interactions(str(file), {})
    expected = expected_samples(log, max(1, min_history), max_history, run)
    steps = workload.steps_available(ranks)
    assert steps == -(-len(expected) // (2 * ranks))
    found = []
    for step in range(steps):
        for rank in range(ranks):
            batch = workload.batch(step, rank, ranks)
            assert batch.sample_id.tolist() == [rank * 2 + place for place in range(batch.samples)]
            history = batch.history["item"].split(batch.lengths[:, 0].tolist())
            shown = batch.candidates["item"].split(batch.lengths[:, 1].tolist())
            liked = batch.labels.split(batch.lengths[:, 1].tolist())
            found += list(zip(history, shown, liked, strict=True))
    item, rating = log.features["item"], log.rating
    assert rating is not None
    assert [(past.tolist(), now.tolist(), liked.tolist()) for past, now, liked in found] == [
        (item[past].tolist(), item[now].tolist(), (rating[now] >= 4).tolist()) for past, now in expected
    ]


def test_candidates_never_come_before_the_history_and_batches_go_forward_in_time(tmp_path: Path) -> None:
    random_log(2_000, 20).to_csv(tmp_path / "log.csv", index=False)
    workload = tiny_on(tmp_path / "log.csv")
    last = 0
    for step in range(workload.steps_available(1) or 0):
        batch = workload.batch(step, 0, 1)
        past, now = (
            times.split(batch.lengths[:, axis].tolist())
            for axis, times in enumerate((batch.history_time, batch.candidate_time))
        )
        for events, shown in zip(past, now, strict=True):
            assert (events.diff() >= 0).all()
            assert events[-1] <= shown.min()
            assert int(shown.max()) >= last
            last = int(shown.max())


def test_a_log_without_labels_gets_negatives_by_popularity_and_drops_accidental_hits(tmp_path: Path) -> None:
    frame = random_log(20_000, 50).drop(columns="rating")
    frame["item_id"] = np.random.default_rng(1).zipf(1.5, len(frame)) % 40
    frame["category"] = frame["item_id"] % 3
    frame.to_csv(tmp_path / "log.csv", index=False)
    workload = tiny_on(tmp_path / "log.csv", max_candidates=8)
    assert workload.config.features == ("item", "category")
    negatives = []
    for step in range(500):
        batch = workload.batch(step, 0, 1)
        assert batch.labels.tolist() == [1.0, 0.0, 0.0, 0.0] * (batch.labels.numel() // 4)
        its_category = dict(zip(batch.history["item"].tolist(), batch.history["category"].tolist(), strict=True))
        at = 0
        for count in batch.lengths[:, 1].tolist():
            items, labels, weights = (
                values[at : at + count] for values in (batch.candidates["item"], batch.labels, batch.weights)
            )
            positives = items[labels > 0]
            assert (weights[labels > 0] == 1).all()
            assert torch.equal(weights[labels == 0] == 0, torch.isin(items[labels == 0], positives))
            negatives += items[labels == 0].tolist()
            at += count
        for item, category in zip(
            batch.candidates["item"].tolist(), batch.candidates["category"].tolist(), strict=True
        ):
            assert its_category.setdefault(item, category) == category
    shares = np.bincount(read_interactions(str(tmp_path / "log.csv"), {}).features["item"]) / len(frame)
    drawn = np.bincount(negatives, minlength=len(shares)) / len(negatives)
    assert drawn == pytest.approx(shares, abs=0.015)


def test_the_last_global_batch_may_be_short_and_leave_ranks_empty(tmp_path: Path) -> None:
    random_log(60, 3).to_csv(tmp_path / "log.csv", index=False)
    workload = tiny_on(tmp_path / "log.csv")
    total = sum(workload.batch(step, 0, 1).samples for step in range(workload.steps_available(1) or 0))
    ranks = next(ranks for ranks in range(2, 20) if 0 < total % (2 * ranks) <= 2 * ranks - 2)
    last = (workload.steps_available(ranks) or 0) - 1
    counts = [workload.batch(last, rank, ranks).samples for rank in range(ranks)]
    assert sum(counts) == total % (2 * ranks)
    assert counts[-1] == 0
    empty = workload.batch(last, ranks - 1, ranks)
    assert bce_sum(workload.local_model()(empty), empty.labels, empty.weights).item() == 0
    with pytest.raises(FreeScaleError, match=rf"step {last + 2} asked for, but {total} samples on {ranks} ranks make"):
        workload.batch(last + 1, 0, ranks)


def test_a_real_log_trains_the_model_that_fits_its_columns(tmp_path: Path) -> None:
    random_log(400, 8).to_csv(tmp_path / "log.csv", index=False)
    workload = tiny_on(tmp_path / "log.csv")
    assert {name: spec.rows for name, spec in workload.tables().items()} == {"item": 50, "action": 5}
    assert set(workload.feature_tables()) == {"item", "action", "candidate_item"}
    batch = workload.batch(3, 0, 2)
    assert set(batch.ids()) == set(workload.feature_tables())
    bce_sum(workload.local_model()(batch), batch.labels, batch.weights).backward()
    described = workload.describe()
    assert described["data"].endswith("log.csv")
    assert (described["interactions"], described["users"]) == (400, 8)


HEADER = "user,item,timestamp,rating\n"
GOOD = "".join(f"{n % 3},{n},{n},{n % 5}\n" for n in range(40))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty, expected an interaction log"),
        (HEADER, "no interactions, expected at least one line after the header"),
        (
            "user,item\n1,2\n",
            r"no column for the timestamp \(columns 'user', 'item'\); name it with --column timestamp=",
        ),
        ("1,2\n3,4\n", r"no column for the user \(no header line, and columns '1', '2'\)"),
        ("user,item,timestamp,user\n1,2,3,4\n", "column 'user' is there 2 times, expected different names"),
        ("user_id:token,user_id:float,item,timestamp\n1,2,3,4\n", "column 'user_id' is there 2 times"),
        ("justonecolumn\n1\n", "line 1: one column, expected user, item and time"),
        (HEADER + GOOD + "1,2,soon,4\n", "line 42, column 'timestamp': 'soon', expected a number of seconds"),
        (HEADER + "\n\n" + GOOD + "1,2,nan,4\n", "line 44, column 'timestamp': no value, expected a number of sec"),
        (HEADER + "1,2,inf,4\n" + GOOD, "line 2, column 'timestamp': 'inf', expected a number of seconds"),
        (HEADER + "1,2,-5,4\n" + GOOD, "line 2, column 'timestamp': '-5', expected a number of seconds"),
        (HEADER + GOOD + ",2,3,4\n", "line 42, column 'user': no value, expected the user of every interaction"),
        (HEADER + GOOD + "1,NaN,3,4\n", "line 42, column 'item': no value, expected the item of every interaction"),
        (HEADER + GOOD + "1,2,3,good\n", "line 42, column 'rating': 'good', expected a number"),
        (HEADER + GOOD + "1,2,3\n", "line 42: 3 columns, expected 4"),
        (HEADER + "\n" + GOOD + "1,2,3,4,5\n", "line 43: 5 columns, expected 4"),
        (HEADER.encode() + GOOD.encode() + b"1,caf\xe9,3,4\n", "line 42: not UTF-8 text; convert it first"),
        (b"\x1f\x8b\x08\x00rest", "compressed, expected text; unpack it first"),
        (HEADER + "1,2,3,4\n1,2,4,5\n", r"2 interactions of 1 user\(s\) make 1 sample\(s\), expected at least 2"),
        (HEADER + GOOD.replace(",4\n", ",3\n"), "every rating means 0, expected ratings on both sides of 4"),
        (HEADER.replace("rating", "label") + GOOD, "line 4, column 'label': '2', expected a label from 0 to 1"),
        ("user,item,timestamp,label\n" + "".join(f"1,{n},{n},1\n" for n in range(9)), "every label means 1"),
    ],
)
def test_a_bad_text_file_gets_one_line_with_file_place_and_what_was_expected(
    tmp_path: Path, text: str | bytes, message: str
) -> None:
    file = written(tmp_path, "log.csv", text)
    with pytest.raises(FreeScaleError, match=message) as caught:
        tiny_on(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert "\n" not in str(caught.value)


def test_a_bad_parquet_file_gets_one_line(tmp_path: Path) -> None:
    frame = random_log(300, 5)
    whole = tmp_path / "whole.parquet"
    frame.to_parquet(whole)
    cases = {
        written(tmp_path, "cut.parquet", whole.read_bytes()[:-200]): "not a readable Parquet file, perhaps cut off",
        written(tmp_path, "text.parquet", HEADER + GOOD): "not a readable Parquet file",
    }
    frame.astype({"timestamp": float}).assign(timestamp=np.where(frame.index == 7, np.nan, 1.0)).to_parquet(
        tmp_path / "nan.parquet"
    )
    cases[tmp_path / "nan.parquet"] = "row 8, column 'timestamp': "
    frame.assign(user_id=[[1]] * len(frame)).to_parquet(tmp_path / "nested.parquet")
    cases[tmp_path / "nested.parquet"] = "column 'user_id' is list<.*>, expected single values"
    for file, message in cases.items():
        with pytest.raises(FreeScaleError, match=message) as caught:
            tiny_on(file)
        assert re.match(re.escape(f"{file}: "), str(caught.value))
        assert "\n" not in str(caught.value)


def test_wrong_column_names_are_refused_with_what_there_is(tmp_path: Path) -> None:
    file = written(tmp_path, "log.csv", HEADER + GOOD)
    with pytest.raises(FreeScaleError, match=r"no column 'uid' for the user; there are 'user', 'item', 'timestamp'"):
        tiny_on(file, columns={"user": "uid"})
    with pytest.raises(FreeScaleError, match="no meaning 'person', expected one of user, item, timestamp"):
        tiny_on(file, columns={"person": "user"})


def test_a_path_that_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FreeScaleError, match="no such file, expected an interaction log"):
        tiny_on(tmp_path / "absent.csv")
    with pytest.raises(FreeScaleError, match="a folder, expected an interaction log"):
        tiny_on(tmp_path)
