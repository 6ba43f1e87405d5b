"""Colours a reader can tell apart, on both backgrounds, whatever their eyes."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from dashboard import theme

# Machado, Oliveira & Fernandes 2009, severity 1.0, on linear RGB
VISION = {
    "full": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
CLEARLY_APART = 25.0  # CIE 1976 ΔE; about 2.3 is just noticeable
STANDS_OUT = 2.2


def linear(colour: str) -> np.ndarray:
    srgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(rgb, 0, 1) / np.array([0.95047, 1.0, 1.08883])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(one: str, other: str) -> float:
    """WCAG 2 contrast ratio."""
    dark, light = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (one, other))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("vision", VISION)
def test_classes_can_be_told_apart(vision: str) -> None:
    for one, other in combinations(theme.CLASSES, 2):
        seen = [lab(VISION[vision] @ linear(item.colour)) for item in (one, other)]
        assert np.linalg.norm(seen[0] - seen[1]) > CLEARLY_APART, f"{one.key} and {other.key} under {vision}"


@pytest.mark.parametrize("mode", theme.MODES)
def test_colours_stand_out_from_the_background(mode: theme.Mode) -> None:
    surface = theme.TOKENS[mode]["surface"]
    for colour in (*(item.colour for item in theme.CLASSES), theme.BASELINE_COLOUR, *theme.ARM_COLOURS):
        assert contrast(colour, surface) > STANDS_OUT, colour


@pytest.mark.parametrize("mode", theme.MODES)
def test_text_is_legible_on_every_background(mode: theme.Mode) -> None:
    token = theme.TOKENS[mode]
    for ink in ("ink", "muted", "accent", "good", "bad", "wrong", "plain"):
        for ground in ("page", "surface", "raised"):
            assert contrast(token[ink], token[ground]) >= 4.5, f"{ink} on {ground}"
    assert contrast(token["ink"], token["warn-bg"]) >= 4.5


def test_modes_define_the_same_tokens() -> None:
    assert theme.TOKENS["light"].keys() == theme.TOKENS["dark"].keys()


def test_css_declares_every_class_and_token() -> None:
    css = theme.css_variables()
    assert all(f"{item.colour}" in css for item in theme.CLASSES)
    assert all(css.count(f"--{name}:") == 2 for name in theme.TOKENS["light"])


def test_reference_arms_are_grey_and_the_others_differ() -> None:
    colours = theme.arm_colours(["baseline", "balance", "overlap", "sdd"])
    assert colours["baseline"] == colours["sdd"] == theme.BASELINE_COLOUR
    assert len({colours["balance"], colours["overlap"], theme.BASELINE_COLOUR}) == 3
