"""History-length distributions by name, each with its source.

A distribution is its quantile function: lengths come from uniform numbers, so the same numbers give the same lengths
whatever made them. Histories longer than the cap are cut to the cap, as training pipelines do (their probability
gathers there), and shorter ones are raised to the minimum; the median is therefore the published one.

`kuairand-1k`
    KuaiRand-1K, logs of 1,000 users of a short-video app (data: Gao et al. 2022, arXiv 2208.08696; length statistics:
    data-set table of the HSTU training example in NVIDIA's recsys-examples): minimum 10, median 3,379, mean 5,038,
    maximum 49,332. A lognormal has median exp(mu) and mean exp(mu + sigma^2 / 2), so mu = ln 3379 and
    sigma = sqrt(2 ln(5038 / 3379)) = 0.894; 1,000 draws from it reach about the published maximum.
`kuairand-27k`
    KuaiRand-27K, 27,285 users, same sources: minimum 100, median 8,591, mean 11,796, maximum 228,000. Lognormal with
    sigma = sqrt(2 ln(11796 / 8591)) = 0.796.
`zipf-1.2`
    Synthetic: a power law, density proportional to length^-1.2 between 1 and 10,000. A heavier tail than any published
    log: most samples trivial, a few enormous. Where fixed batch sizes stop balancing.
`uniform`
    Synthetic: uniform between 1 and 1,000. A spread without a tail: the control.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from freescale.errors import FreeScaleError

_MEAN_GRID = 100_000
_KUAIRAND = "(arXiv 2208.08696; lengths as tabled in NVIDIA recsys-examples, HSTU training)"


@dataclass(frozen=True)
class LengthDistribution:
    """Lengths between `minimum` and `cap`, drawn by inverting the distribution function.

    Attributes:
        name: one of `NAMES`.
        source: where its parameters come from.
        shape: which quantile function.
        spread: lognormal: sigma of the logarithm; power: the exponent; uniform: unused (0).
        low, high: support of `power` and `uniform`, in events, before scaling.
        median: events. Changing it scales every length.
        minimum, cap: events, after scaling.
    """

    name: str
    source: str
    shape: Literal["lognormal", "power", "uniform"]
    spread: float
    low: float
    high: float
    median: float
    minimum: int
    cap: int

    def __post_init__(self) -> None:
        if not 0 < self.median < math.inf:
            raise FreeScaleError(f"median length: {self.median}, expected more than 0 events")
        if not 0 <= self.minimum <= self.cap:
            raise FreeScaleError(f"length limits: minimum {self.minimum}, cap {self.cap}; expected 0 <= minimum <= cap")

    def quantile(self, share: NDArray[np.float64]) -> NDArray[np.int64]:
        """int64 lengths that a `share` (in the open interval (0, 1)) of samples do not exceed."""
        lengths = self._relative(share) * self.median
        return np.clip(np.rint(lengths), self.minimum, self.cap).astype(np.int64)

    def sample(self, generator: np.random.Generator, samples: int) -> NDArray[np.int64]:
        """int64[samples] lengths; the same generator state gives the same lengths."""
        return self.quantile(1.0 - generator.random(samples))

    def mean(self) -> float:
        """Mean length in events, minimum and cap included, to about four digits."""
        return float(self.quantile((np.arange(_MEAN_GRID) + 0.5) / _MEAN_GRID).mean())

    def limited(
        self, *, median: float | None = None, minimum: int | None = None, cap: int | None = None
    ) -> LengthDistribution:
        """The same shape with another median (minimum and cap scale with it unless given) and other limits.

        Raises:
            FreeScaleError: a median that is not positive, or a minimum above the cap.
        """
        median = self.median if median is None else median
        scale = median / self.median
        cap = max(1, round(self.cap * scale)) if cap is None else cap
        minimum = min(cap, max(1, round(self.minimum * scale))) if minimum is None else minimum
        return replace(self, median=median, minimum=minimum, cap=cap)

    def _relative(self, share: NDArray[np.float64]) -> NDArray[np.float64]:
        """Quantile divided by the median."""
        if self.shape == "lognormal":
            return np.asarray(np.exp(self.spread * ndtri(share)), dtype=np.float64)
        return self._bounded(share) / self._bounded(np.array(0.5))

    def _bounded(self, share: NDArray[np.float64]) -> NDArray[np.float64]:
        if self.shape == "uniform":
            return np.asarray(self.low + share * (self.high - self.low))
        power = 1.0 - self.spread
        return np.asarray((self.low**power + share * (self.high**power - self.low**power)) ** (1.0 / power))


def named(name: str) -> LengthDistribution:
    """The distribution as published; see `LengthDistribution.limited` for other medians and caps.

    Raises:
        FreeScaleError: no distribution of that name.
    """
    if name not in _DISTRIBUTIONS:
        raise FreeScaleError(f"lengths: no distribution {name!r}; there are {', '.join(NAMES)}")
    return _DISTRIBUTIONS[name]


def _lognormal(name: str, source: str, minimum: int, median: float, mean: float, maximum: int) -> LengthDistribution:
    sigma = math.sqrt(2.0 * math.log(mean / median))
    return LengthDistribution(name, source, "lognormal", sigma, 0.0, math.inf, median, minimum, maximum)


def _bounded(
    name: str, source: str, shape: Literal["power", "uniform"], spread: float, low: int, high: int
) -> LengthDistribution:
    unscaled = LengthDistribution(name, source, shape, spread, low, high, 1.0, low, high)
    return replace(unscaled, median=float(unscaled._bounded(np.array(0.5))))


_DISTRIBUTIONS = {
    distribution.name: distribution
    for distribution in (
        _lognormal(
            "kuairand-1k",
            f"KuaiRand-1K {_KUAIRAND}: min 10, median 3,379, mean 5,038, max 49,332",
            minimum=10,
            median=3_379,
            mean=5_038,
            maximum=49_332,
        ),
        _lognormal(
            "kuairand-27k",
            f"KuaiRand-27K {_KUAIRAND}: min 100, median 8,591, mean 11,796, max 228,000",
            minimum=100,
            median=8_591,
            mean=11_796,
            maximum=228_000,
        ),
        _bounded("zipf-1.2", "synthetic: power law with exponent 1.2 on 1 to 10,000", "power", 1.2, 1, 10_000),
        _bounded("uniform", "synthetic: uniform on 1 to 1,000", "uniform", 0.0, 1, 1_000),
    )
}

NAMES = tuple(_DISTRIBUTIONS)
