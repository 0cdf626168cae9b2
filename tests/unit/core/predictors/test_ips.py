import numpy as np
import pytest

from core.algorithms.clock.speed_table import speed_table
from core.engine.profiles import Point, Profile
from core.predictors.ips import (
    BoostedIps,
    EngineIps,
    IpsSamples,
    block_context,
    context_blocks,
    fit_and_score,
    samples_of,
)

pytestmark = pytest.mark.usefixtures("scikit_learn")

ENGINE = EngineIps("Llama2-13B", "A100-40GB", "trtllm", 128)


@pytest.fixture(scope="module")
def noisy() -> IpsSamples:
    """The paper's profiling, on the engine model: all sizes, batches up to 256, the clocks; speeds off by 2 %."""
    clean = ENGINE.samples((1, 2, 4), (1, 2, 4, 8, 16, 32, 64, 128, 256), list(np.arange(210.0, 1411.0, 75.0)), 14)
    ips = clean.ips * np.exp(np.random.default_rng(5).normal(0.0, 0.02, len(clean)))
    return IpsSamples(clean.tp, clean.batch, clean.kv_blocks, clean.mhz, ips)


@pytest.mark.parametrize(("train_share", "r2"), [(0.9, 0.97), (0.1, 0.96)])
def test_speed_is_predicted_as_in_table_iii_when_trained_on_a_share(
    noisy: IpsSamples, train_share: float, r2: float
) -> None:
    _, scores = fit_and_score(noisy, train_share, np.random.default_rng(1))
    assert scores.r2 >= r2
    assert scores.mape < 0.065  # the worst of the paper's
    assert scores.mae_ips < 1.5
    assert scores.trained_on + scores.tested_on == len(noisy)


def test_prediction_keeps_the_order_of_speeds_when_one_feature_moves(noisy: IpsSamples) -> None:
    model = BoostedIps.fit(noisy)
    base = {"batch": np.full(20, 32.0), "kv_blocks": np.full(20, 300.0), "mhz": np.full(20, 900.0)}
    for name, sign, values in (
        ("mhz", 1.0, np.linspace(210.0, 1410.0, 20)),
        ("batch", -1.0, np.linspace(1.0, 256.0, 20)),
        ("kv_blocks", -1.0, np.linspace(32.0, 1000.0, 20)),
    ):
        speeds = model.predict(4, **{**base, name: values})
        assert (sign * np.diff(speeds) >= 0.0).all()
        assert sign * (speeds[-1] - speeds[0]) > 0.0


def test_prediction_is_the_same_when_learned_twice(noisy: IpsSamples) -> None:
    some = noisy.rows(np.arange(0, len(noisy), 20))
    one, two = (BoostedIps.fit(some).predict(2, some.batch, some.kv_blocks, some.mhz) for _ in range(2))
    assert (one == two).all()


def test_table_of_trees_is_like_that_of_the_engine_model_when_learned_from_it(noisy: IpsSamples) -> None:
    shape, clocks = ENGINE.shape(4, max_sequences=32), list(np.linspace(300.0, 1400.0, 12))
    learned = speed_table(BoostedIps.fit(noisy), None, shape, clocks)
    modelled = speed_table(ENGINE, None, shape, clocks)
    inside = slice(1, -1)  # of the cache; what is empty was never profiled
    error = learned.seconds[:, :, inside] / modelled.seconds[:, :, inside] - 1.0
    assert np.abs(error).mean() < 0.06
    assert (np.diff(learned.seconds, axis=0) <= 0.0).all()


def test_blocks_and_context_are_inverse_when_sequences_have_their_blocks() -> None:
    batch, context = np.array([1.0, 32.0]), np.array([500.0, 16000.0])
    blocks = context_blocks(batch, context, 16)
    assert blocks[0] == pytest.approx((500 + 7.5) / 16)
    assert block_context(batch, blocks, 16) == pytest.approx(context)
    assert block_context(batch, np.zeros(2), 16).tolist() == batch.tolist()


def test_samples_leave_points_with_prompts_out_when_a_profile_has_some() -> None:
    points = (Point(0, 1000.0, 4, 400.0, 0.02, None), Point(512, 1000.0, 4, 400.0, 0.2, None))
    found = samples_of([Profile("Llama2-13B", "A100-40GB", 2, "trtllm", points)], block_tokens=16)
    assert found.ips.tolist() == [50.0]
    assert found.features.tolist() == [[2.0, 4.0, (400.0 + 4 * 7.5) / 16, 1000.0]]


def test_samples_are_refused_when_profiles_are_of_two_models() -> None:
    points = (Point(0, 1000.0, 4, 400.0, 0.02, None),)
    profiles = [Profile(model, "A100-40GB", 2, "trtllm", points) for model in ("Llama2-13B", "Llama3-8B")]
    with pytest.raises(ValueError, match="one model"):
        samples_of(profiles)
    with pytest.raises(ValueError, match="no point"):
        samples_of([])


@pytest.mark.parametrize("train_share", [0.0, 1.0, -0.1, 0.01])
def test_split_is_refused_when_it_leaves_nothing_to_learn_or_to_test(train_share: float) -> None:
    few = IpsSamples(*(np.arange(1.0, 11.0) for _ in range(5)))
    with pytest.raises(ValueError, match=r"share|too few"):
        fit_and_score(few, train_share, np.random.default_rng(0))


def test_prompts_cost_more_when_longer_or_at_a_lower_clock() -> None:
    tokens = np.array([0.0, 100.0, 1000.0, 8000.0])
    high, low = (ENGINE.prompt_s(2, tokens, np.full(4, mhz)) for mhz in (1410.0, 600.0))
    assert high[0] == low[0] == 0.0
    assert (np.diff(high) > 0.0).all()
    assert (low[1:] > high[1:]).all()
