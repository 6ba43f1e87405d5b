import json

from click.testing import CliRunner

from freescale.bench.workloads import command
from workloads import lengths, registry


def test_json_lists_every_preset_and_distribution_with_parameters_and_source() -> None:
    result = CliRunner().invoke(command, ["--json"])
    assert result.exit_code == 0
    listing = json.loads(result.stdout)
    assert listing["default"] == registry.DEFAULT_PRESET
    assert list(listing["presets"]) == list(registry.PRESETS)
    assert list(listing["lengths"]) == list(lengths.NAMES)
    kuairand = listing["lengths"]["kuairand-1k"]
    assert (kuairand["median"], kuairand["min"], kuairand["max"]) == (3_379, 10, 49_332)
    assert "2208.08696" in kuairand["source"]


def test_text_names_every_preset_and_distribution() -> None:
    result = CliRunner().invoke(command, [])
    assert result.exit_code == 0
    for name in (*registry.PRESETS, *lengths.NAMES):
        assert f"  {name}" in result.stdout
    assert "hstu-small (default)" in result.stdout
