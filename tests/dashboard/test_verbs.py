"""`report` and `dashboard` on the command line."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner, Result

from analyzer.errors import AnalyzerError
from dashboard.data import RunStore
from dashboard.server import listen
from freescale.bench import dashboard as dashboard_verb
from freescale.bench import report as report_verb
from freescale.errors import FreeScaleError


def report(*arguments: object) -> Result:
    return CliRunner().invoke(report_verb.command, [str(argument) for argument in arguments])


def test_the_ending_decides_the_form(tmp_path: Path, rundirs: ModuleType) -> None:
    run = rundirs.write_run(tmp_path, "run")
    for ending, start in ((".html", "<!doctype html>"), (".md", "# balance takes"), (".json", "{")):
        out = tmp_path / f"report{ending}"
        result = report(run, "-o", out)
        assert (result.exit_code, result.output) == (0, f"wrote {out}\n")
        assert out.read_text(encoding="utf-8").startswith(start)
    assert json.loads((tmp_path / "report.json").read_text()) == json.loads((run / "report.json").read_text())


def test_a_file_that_is_there_is_not_overwritten_without_force(tmp_path: Path, rundirs: ModuleType) -> None:
    run, out = rundirs.write_run(tmp_path, "run"), tmp_path / "report.md"
    out.write_text("mine")
    result = report(run, "-o", out)
    assert isinstance(result.exception, FreeScaleError)
    assert str(result.exception) == f"File already exists, will not overwrite without --force: {out}"
    assert out.read_text() == "mine"
    assert report(run, "-o", out, "--force").exit_code == 0
    assert out.read_text(encoding="utf-8").startswith("# balance")


def test_json_prints_the_report_and_nothing_else(tmp_path: Path, rundirs: ModuleType) -> None:
    run = rundirs.write_run(tmp_path, "run")
    assert json.loads(report(run, "--json").output) == json.loads((run / "report.json").read_text())


@pytest.mark.parametrize("arguments", [[], ["-o", "report.pdf"]])
def test_wrong_usage_says_what_is_wanted(arguments: list[str], tmp_path: Path, rundirs: ModuleType) -> None:
    result = report(rundirs.write_run(tmp_path, "run"), *arguments)
    assert result.exit_code == 2
    assert ".html" in result.output


def test_a_run_that_was_not_analysed_names_the_cure(tmp_path: Path, rundirs: ModuleType) -> None:
    run = rundirs.write_run(tmp_path, "run", analysed=False)
    result = report(run, "--json")
    assert isinstance(result.exception, FreeScaleError)
    assert f"freescale-bench analyze {run}" in str(result.exception)


def test_an_arm_that_was_not_run_is_refused_by_name(tmp_path: Path, rundirs: ModuleType) -> None:
    result = report(rundirs.write_run(tmp_path, "run"), "--arm", "overlap", "-o", tmp_path / "x.html")
    assert str(result.exception).endswith("no arm 'overlap'; this run has baseline, balance")


def test_a_folder_that_is_no_run_is_one_line(tmp_path: Path) -> None:
    result = report(tmp_path, "--json")
    assert isinstance(result.exception, AnalyzerError)
    assert "not a run directory" in str(result.exception)


def test_markdown_has_the_tables_and_no_markup_from_names(
    runs_root: Path, names: dict[str, str], tmp_path: Path, rundirs: ModuleType
) -> None:
    out = tmp_path / "report.md"
    assert report(runs_root / names["evil"], "-o", out).exit_code == 0
    text = out.read_text(encoding="utf-8")
    assert rundirs.HOSTILE not in text
    assert "\\<script\\>" in text
    assert "| Arm | Verdict | Step time |" in text
    assert all(line.startswith("|") == line.endswith("|") for line in text.splitlines())


def test_markdown_says_when_a_run_is_not_complete(runs_root: Path, names: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "report.md"
    assert report(runs_root / names["died"], "-o", out).exit_code == 0
    text = out.read_text(encoding="utf-8")
    assert "**Not complete:** rank 1: killed by signal 9 (SIGKILL)." in text
    assert "## Step time" in text


def test_a_folder_that_is_missing_is_named() -> None:
    result = CliRunner().invoke(dashboard_verb.command, ["/nowhere", "--no-open"])
    assert isinstance(result.exception, AnalyzerError)
    assert "/nowhere: no such folder" in str(result.exception)


def test_only_requests_for_this_machine_are_answered(runs_root: Path) -> None:
    server = listen(RunStore(runs_root), "127.0.0.1", 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        answers = []
        for host in ("127.0.0.1", "localhost", "rebound.example"):
            connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
            connection.request("GET", "/", headers={"Host": host})
            answers.append(connection.getresponse().status)
            connection.close()
        assert answers == [200, 200, 400]
        assert server.server_address[0] == "127.0.0.1"
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


def test_a_port_that_is_taken_is_one_line_with_the_cure(runs_root: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(AnalyzerError, match=rf"Cannot listen on 127\.0\.0\.1:{port} .*--port 0"):
            listen(RunStore(runs_root), "127.0.0.1", port)
