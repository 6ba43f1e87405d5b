import numpy as np
import pytest

from freescale.balance.cost_model import CostModel, work_of
from freescale.balance.policies import rounds
from freescale.errors import FreeScaleError

TRUE = np.array([2e-5, 0.004, 0.03, 0.5])  # ms per L^2, per event, per candidate, per sample
PER_STEP_MS = 12.0


def prior(lengths: np.ndarray) -> np.ndarray:
    return lengths[:, 0].astype(np.float64) ** 2 + 300.0 * lengths.sum(axis=1)


def some_lengths(draw: np.random.Generator, samples: int) -> np.ndarray:
    history = np.clip(np.exp(5 + 0.9 * draw.normal(size=samples)), 1, 4_000).astype(np.int64)
    return np.column_stack([history, draw.integers(4, 17, samples)])


def busy_ms(lengths: np.ndarray) -> float:
    history, candidates = lengths.astype(np.float64).T
    return float(PER_STEP_MS + (TRUE * np.column_stack([history**2, history, candidates, np.ones(len(history))])).sum())


def observe_steps(
    model: CostModel, draw: np.random.Generator, steps: int, noise: float = 0.0, counts: tuple[int, int] = (20, 45)
) -> None:
    """Four ranks with as many samples as `counts` allows; as they come, not balanced."""
    for _ in range(steps):
        ranks = [some_lengths(draw, int(draw.integers(*counts))) for _ in range(4)]
        times = [busy_ms(lengths) * np.exp(noise * draw.normal()) for lengths in ranks]
        model.observe(np.array([work_of(lengths) for lengths in ranks]), np.array(times))


def test_work_adds_up_what_the_formula_needs() -> None:
    assert work_of(np.array([[3, 1], [10, 2]])).tolist() == [9 + 100, 13, 3, 2]
    assert work_of(np.empty((0, 2), dtype=np.int64)).tolist() == [0, 0, 0, 0]


def test_exact_times_give_the_exact_coefficients() -> None:
    model = CostModel(prior)
    observe_steps(model, np.random.default_rng(0), 20)
    fit = model.refit()
    assert fit is not None
    assert fit.per_unit == pytest.approx(TRUE, rel=1e-6)
    assert fit.per_step_ms == pytest.approx(PER_STEP_MS, rel=1e-6)
    assert fit.r2 == pytest.approx(1)
    lengths = some_lengths(np.random.default_rng(1), 30)
    assert model.predicted_ms(lengths) == pytest.approx(busy_ms(lengths), rel=1e-6)
    assert model(lengths).sum() + PER_STEP_MS == pytest.approx(busy_ms(lengths), rel=1e-6)


def test_with_equally_many_samples_everywhere_a_constant_counts_as_cost_of_the_samples() -> None:
    model = CostModel(prior)
    observe_steps(model, np.random.default_rng(0), 20, counts=(32, 33))
    fit = model.refit()
    assert fit is not None
    assert fit.per_step_ms == 0
    assert fit.per_unit == pytest.approx([*TRUE[:3], TRUE[3] + PER_STEP_MS / 32], rel=1e-6)


def test_noisy_times_still_predict_within_the_noise() -> None:
    model, draw = CostModel(prior), np.random.default_rng(2)
    observe_steps(model, draw, 40, noise=0.05)
    fit = model.refit()
    assert fit is not None
    assert (fit.per_unit >= 0).all()
    assert fit.r2 > 0.9
    assert 0.02 < fit.median_error < 0.05
    fresh = [some_lengths(draw, 32) for _ in range(50)]
    errors = [abs(model.predicted_ms(lengths) / busy_ms(lengths) - 1) for lengths in fresh]
    assert np.median(errors) < 0.02


def test_before_there_are_enough_measurements_the_prior_counts() -> None:
    model = CostModel(prior, least=12)
    lengths = some_lengths(np.random.default_rng(0), 5)
    observe_steps(model, np.random.default_rng(0), 2)
    assert model.refit() is None
    assert (model.source, model(lengths).tolist()) == ("prior", prior(lengths).tolist())
    assert np.isnan(model.predicted_ms(lengths))
    observe_steps(model, np.random.default_rng(1), 1)
    assert model.refit() is not None
    assert model.source == "fit"


def test_times_that_lengths_do_not_explain_fall_back_to_tokens_and_say_so() -> None:
    model, draw = CostModel(prior), np.random.default_rng(3)
    for _ in range(40):
        ranks = [some_lengths(draw, 32) for _ in range(4)]
        model.observe(np.array([work_of(lengths) for lengths in ranks]), np.exp(draw.normal(size=4)) * 100)
    fit = model.refit()
    assert fit is not None
    assert fit.r2 < 0.5
    assert fit.median_error > 0.1
    assert (fit.explains, model.source) == (False, "tokens")
    lengths = np.array([[100, 4], [7, 9]])
    assert model(lengths).tolist() == [104, 16]
    assert np.isnan(model.predicted_ms(lengths))


def test_a_few_disturbed_steps_do_not_matter() -> None:
    model, draw = CostModel(prior), np.random.default_rng(4)
    observe_steps(model, draw, 30, noise=0.01)
    ranks = [some_lengths(draw, 30) for _ in range(8)]
    work = np.array([work_of(lengths) for lengths in ranks])
    model.observe(work, np.array([busy_ms(lengths) for lengths in ranks]) * 20)
    model.observe(work[:3], np.array([np.nan, 0.0, -1.0]))
    fit = model.refit()
    assert fit is not None
    assert fit.rows <= 120
    lengths = some_lengths(draw, 32)
    assert model.predicted_ms(lengths) == pytest.approx(busy_ms(lengths), rel=0.02)


def test_balanced_steps_do_not_unlearn_how_the_terms_divide() -> None:
    model, draw = CostModel(prior, window=64), np.random.default_rng(5)
    observe_steps(model, draw, 16, noise=0.01)
    model.refit()
    for _ in range(100):  # the warm-up is long gone from the window, and all ranks look alike
        lengths = some_lengths(draw, 128)
        ranks = [lengths[rounds(model(lengths), 4) == rank] for rank in range(4)]
        times = np.array([busy_ms(part) for part in ranks]) * np.exp(0.02 * draw.normal(size=4))
        model.observe(np.array([work_of(part) for part in ranks]), times)
        model.refit()
    assert model.source == "fit"
    for _ in range(20):
        lengths = some_lengths(draw, 128)
        exact = TRUE @ np.column_stack([lengths[:, 0] ** 2, lengths, np.ones(len(lengths))]).T
        learned, best = (
            max(busy_ms(lengths[ranks == rank]) for rank in range(4))
            for ranks in (rounds(model(lengths), 4), rounds(exact, 4))
        )
        assert learned < 1.03 * best


def test_a_change_of_speed_is_followed_once_the_window_has_passed() -> None:
    model, draw = CostModel(prior, window=64), np.random.default_rng(6)
    observe_steps(model, draw, 16)
    model.refit()
    lengths = some_lengths(draw, 32)
    for _ in range(20):
        ranks = [some_lengths(draw, int(draw.integers(20, 45))) for _ in range(4)]
        model.observe(np.array([work_of(part) for part in ranks]), 2 * np.array([busy_ms(part) for part in ranks]))
        model.refit()
    assert model.predicted_ms(lengths) == pytest.approx(2 * busy_ms(lengths), rel=0.01)


def test_all_ranks_that_see_the_same_numbers_have_the_same_model() -> None:
    models = [CostModel(prior) for _ in range(2)]
    for model in models:
        observe_steps(model, np.random.default_rng(7), 10, noise=0.1)
        model.refit()
    lengths = some_lengths(np.random.default_rng(8), 100)
    assert models[0](lengths).tolist() == models[1](lengths).tolist()


def test_other_jagged_axes_count_linearly() -> None:
    model, draw = CostModel(lambda lengths: lengths.sum(axis=1).astype(np.float64)), np.random.default_rng(9)
    for _ in range(10):
        ranks = [draw.integers(1, 500, (int(draw.integers(5, 20)), 3)) for _ in range(3)]
        work = np.array([work_of(lengths) for lengths in ranks])
        model.observe(work, work @ np.array([1e-4, 0.01, 0.02, 0.03, 1.0]))
    fit = model.refit()
    assert fit is not None
    assert fit.per_unit == pytest.approx([1e-4, 0.01, 0.02, 0.03, 1.0], rel=1e-6)


def test_a_window_smaller_than_what_a_fit_needs_is_refused() -> None:
    with pytest.raises(FreeScaleError, match="least: 20, expected 1 to window, which is 10"):
        CostModel(prior, window=10, least=20)


def test_noise_that_hides_most_of_the_variance_does_not_turn_a_right_model_down() -> None:
    draw = np.random.default_rng(5)
    model = CostModel(prior=lambda lengths: np.ones(len(lengths)))
    for _ in range(40):
        steps = [np.column_stack([draw.integers(1, 400, 32), draw.integers(1, 16, 32)]) for _ in range(2)]
        ms = [1e-4 * float((lengths[:, 0].astype(float) ** 2).sum()) for lengths in steps]
        work = np.stack([work_of(lengths) for lengths in steps])
        model.observe(work, np.array(ms) * draw.lognormal(0.0, 0.2, 2))
    fit = model.refit()
    assert fit is not None
    assert fit.r2 < 0.5
    assert model.source == "fit"
    lengths = np.column_stack([np.arange(1, 400), np.full(399, 8)])
    true = lengths[:, 0].astype(float) ** 2
    assert np.corrcoef(model(lengths), true)[0, 1] > np.corrcoef(lengths.sum(axis=1), true)[0, 1]


def test_predictions_follow_a_machine_that_slows_down() -> None:
    draw = np.random.default_rng(6)
    model = CostModel(prior=lambda lengths: np.ones(len(lengths)))
    for step in range(60):
        steps = [np.column_stack([draw.integers(1, 400, 32), draw.integers(1, 16, 32)]) for _ in range(2)]
        ms = np.array([1e-4 * float((lengths[:, 0].astype(float) ** 2).sum()) for lengths in steps])
        model.observe(np.stack([work_of(lengths) for lengths in steps]), ms * (1.0 if step < 40 else 1.5))
    model.refit()
    assert model.predicted_ms(steps[0]) == pytest.approx(1.5 * ms[0], rel=0.05)
