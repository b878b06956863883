"""Whether B is better than A: pairing, verdicts, what is left out, and what would settle it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rollmesh.errors import InvalidSpec
from rollmesh.results.compare import compare
from rollmesh.results.paired import mcnemar_p, sign_flip_p, tango_interval
from rollmesh.results.result import EvalResult
from rollmesh.results.stopping import StopRule
from tests.unit.result_toys import episode, returns, successes, table


def test_success_is_compared_by_mcnemar_and_tango() -> None:
    found = compare(*table(both=20, lost=2, won=12, neither=16))
    assert found.metric == "success"
    assert found.verdict == "better"
    assert (found.pairs, found.discordant, found.won, found.lost) == (50, 14, 12, 2)
    assert (found.a_value, found.b_value) == (22 / 50, 32 / 50)
    assert found.difference == pytest.approx(0.2)
    assert found.interval == tango_interval(12, 2, 50)
    assert found.p_value == mcnemar_p(12, 2)
    assert found.test == "exact McNemar"
    assert "B is BETTER than A" in found.explanation
    assert "14 pairs differ: B did better in 12, A in 2" in found.explanation


def test_worse_is_the_mirror_of_better() -> None:
    found = compare(*table(both=20, lost=12, won=2, neither=16))
    assert found.verdict == "worse"
    assert found.difference == pytest.approx(-0.2)


def test_identical_results_are_equivalent_once_there_are_enough() -> None:
    few = compare(*table(both=10, lost=0, won=0, neither=10))
    many = compare(*table(both=60, lost=0, won=0, neither=60))
    assert (few.discordant, few.p_value, few.difference) == (0, 1.0, 0.0)
    assert few.verdict == "underpowered"
    assert many.verdict == "equivalent"
    assert many.interval is not None
    assert 0.0 < many.interval.high < 0.05
    assert "No pair differs" in many.explanation
    assert few.episodes_needed is not None
    assert few.settles_as == "equivalent"


def test_a_margin_left_out_does_not_hide_a_difference_and_one_given_may() -> None:
    a, b = table(both=900, lost=12, won=40, neither=48)
    assert compare(a, b).verdict == "better"
    given = compare(a, b, margin=0.05)
    assert given.verdict == "equivalent"
    assert "They do differ, but by less than the margin" in given.explanation
    assert compare(a, b, margin=0.01).verdict == "better"


def test_underpowered_says_how_many_episodes_would_settle_it() -> None:
    found = compare(*table(both=50, lost=6, won=14, neither=30))
    assert found.verdict == "underpowered"
    assert found.effect == pytest.approx(0.08)
    assert found.settles_as == "better"
    assert found.episodes_needed is not None
    assert 100 < found.episodes_needed < 400
    assert f"{found.episodes_needed} episodes" in found.explanation
    assert found.explanation.startswith("UNDERPOWERED: 100 pairs cannot tell B from A")


def test_what_would_settle_it_does_so_in_most_simulated_runs() -> None:
    found = compare(*table(both=50, lost=6, won=14, neither=30))
    assert found.episodes_needed is not None
    rng, n = np.random.default_rng(1), found.episodes_needed
    verdicts = [
        compare(*table(*rng.multinomial(n, [0.5, 0.06, 0.14, 0.3]).tolist())).verdict
        for _ in range(100)
    ]
    assert 0.7 <= verdicts.count("better") / 100 <= 0.95


def test_no_difference_is_called_one_as_seldom_as_promised() -> None:
    rng = np.random.default_rng(2)
    verdicts = [
        compare(*table(*rng.multinomial(80, [0.5, 0.1, 0.1, 0.3]).tolist())).verdict
        for _ in range(80)
    ]
    assert (verdicts.count("better") + verdicts.count("worse")) / 80 <= 0.05


def test_no_difference_of_returns_is_called_one_as_seldom_as_promised() -> None:
    rng, wrong = np.random.default_rng(3), 0
    for _ in range(300):
        a = rng.normal(0, 5, size=9)
        b = a + rng.normal(0, 1, size=9)
        wrong += compare(returns(a.tolist()), returns(b.tolist())).verdict in {"better", "worse"}
    assert wrong / 300 <= 0.06


# Returns.


def test_returns_are_compared_by_flips_and_bootstrap_of_the_pairs() -> None:
    rng = np.random.default_rng(4)
    a = rng.normal(100, 30, size=60)
    b = a + rng.normal(2, 3, size=60)
    found = compare(returns(a.tolist()), returns(b.tolist()), margin=0.5)
    assert found.metric == "return"
    assert found.verdict == "better"
    assert found.test == "sign-flip permutation"
    assert found.p_value == sign_flip_p((b - a).tolist())
    assert found.interval is not None
    assert found.interval.method == "bca"
    assert found.interval.high - found.interval.low < 3  # unpaired it would be above 15
    assert found.bounds is None


def test_the_default_return_margin_is_a_share_of_the_mean_of_a() -> None:
    rng = np.random.default_rng(5)
    a = rng.normal(200, 10, size=100)
    found = compare(returns(a.tolist()), returns((a + rng.normal(0, 5, size=100)).tolist()))
    assert found.margin == pytest.approx(0.05 * a.mean())
    assert found.verdict == "equivalent"
    assert not found.is_margin_given


@pytest.mark.parametrize("sign", [1, -1])
def test_pairs_that_all_differ_alike_leave_room_for_those_not_seen(sign: int) -> None:
    found = compare(returns([500.0] * 30), returns([500.0 + sign * 100] * 30))
    assert found.interval is not None
    share = 1 - 0.025 ** (1 / 30)
    ends = sorted(sign * (100 * (1 - share) + far * 100 * share) for far in (-1, 1))
    assert tuple(found.interval) == pytest.approx(ends)
    assert found.interval.method == "alike"
    assert found.verdict == ("better" if sign > 0 else "worse")
    few = compare(returns([500.0] * 2), returns([500.0 + sign * 100] * 2))
    assert few.verdict == "underpowered"


def test_identical_returns_are_bounded_by_what_was_not_seen() -> None:
    spread = [float(v) for v in range(100)]
    found = compare(returns(spread), returns(spread))
    assert found.interval is not None
    assert found.interval.method == "identical"
    assert found.interval.high == pytest.approx((1 - 0.025 ** (1 / 100)) * 99)
    assert found.p_value == 1.0
    assert found.verdict == "underpowered"
    assert found.episodes_needed is not None
    assert "differ by no more than those seen" in found.explanation


@pytest.mark.parametrize("sign", [1, -1])
def test_returns_that_are_all_equal_are_bounded_by_how_large_they_are(sign: int) -> None:
    many = compare(returns([sign * 500.0] * 100), returns([sign * 500.0] * 100))
    assert many.interval is not None
    reach = (1 - 0.025 ** (1 / 100)) * 500
    assert tuple(many.interval) == pytest.approx((-reach, reach))
    assert many.interval.method == "constant"
    assert many.verdict == "equivalent"
    assert "differ by no more than the returns seen are large" in many.explanation
    few = compare(returns([sign * 500.0] * 2), returns([sign * 500.0] * 2))
    assert few.verdict == "underpowered"
    assert few.episodes_needed is not None
    one = compare(returns([sign * 500.0]), returns([sign * 500.0]))
    assert (one.verdict, one.interval, one.episodes_needed) == ("underpowered", None, None)


def test_returns_that_are_all_0_tell_nothing_of_others() -> None:
    found = compare(returns([0.0] * 50), returns([-0.0] * 50))
    assert (found.verdict, found.interval, found.episodes_needed) == ("underpowered", None, None)
    assert "All returns are 0" in found.explanation
    assert not found.gate(strict=True).is_open
    assert compare(returns([0.0] * 50), returns([0.0] * 50), margin=0.5).verdict == "underpowered"


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_returns_that_are_not_finite_are_left_out_and_told(odd: float) -> None:
    found = compare(returns([1.0, 2.0, odd, 4.0]), returns([1.5, odd, odd, 4.0]))
    assert found.pairs == 2
    assert found.left_out == 2
    assert dict(found.left_out_because) == {
        "return not finite in B": 1,
        "return not finite in A and B": 1,
    }
    assert "2 pairs left out: 1 return not finite in B" in found.explanation
    json.loads(found.to_json())


def test_huge_returns_are_compared_or_told() -> None:
    found = compare(returns([-1e308, 1e308, 0.0]), returns([1e308, 1e308, 1.0]))
    assert dict(found.left_out_because) == {"difference overflows": 1}
    assert found.pairs == 2


def test_the_spread_of_huge_returns_overflows_nothing() -> None:
    alike = [1e308, -1e308] * 6
    same = compare(returns(alike), returns(alike))
    assert same.interval is not None
    assert all(map(math.isfinite, same.interval))
    json.loads(same.to_json())
    far = compare(returns([0.0, 1.7e308, 0.0]), returns([1.7e308, 0.0, 1.0]))
    assert far.verdict == "underpowered"
    assert far.episodes_needed is not None


def test_one_pair_of_returns_says_nothing() -> None:
    found = compare(returns([1.0]), returns([2.0]))
    assert found.verdict == "underpowered"
    assert found.interval is None
    assert found.episodes_needed is None


def test_metric_is_success_only_where_both_say_it() -> None:
    said, silent = successes([True, False] * 5), returns([1.0, 0.0] * 5)
    assert compare(said, said).metric == "success"
    assert compare(said, silent).metric == "return"
    assert compare(said, said, metric="return").metric == "return"
    found = compare(said, silent, metric="success")
    assert (found.pairs, found.verdict, found.interval) == (0, "underpowered", None)
    assert found.left_out_because == (("success not said in B", 10),)
    assert "no pair could be compared" in found.explanation


# Pairing.


def _with_seeds(result: EvalResult, seeds: list[int | None]) -> EvalResult:
    pairs = zip(result.episodes, seeds, strict=True)
    return replace(result, episodes=tuple(replace(e, seed=seed) for e, seed in pairs))


def test_episodes_are_paired_by_seed_wherever_they_stand_in_the_plan() -> None:
    a = _with_seeds(successes([True, False, True]), [7, 8, 9])
    b = _with_seeds(successes([True, True, False]), [9, 7, 8])
    found = compare(a, b)
    assert (found.pairs, found.discordant) == (3, 0)


def test_a_seed_given_several_times_is_paired_in_order() -> None:
    a = _with_seeds(successes([True, False, True, True]), [5, 5, 6, 5])
    b = _with_seeds(successes([True, False, False, True]), [5, 5, 6, 6])
    found = compare(a, b)
    assert (found.pairs, found.lost, found.won) == (3, 1, 0)
    assert (found.only_in_a, found.only_in_b) == (1, 1)


def test_the_place_pairs_in_equal_plans_so_that_gaps_shift_nothing() -> None:
    a = replace(_with_seeds(successes([True, False, True]), [5, 5, 5]), plan_hash="1f")
    b = replace(a, episodes=a.episodes[1:])
    found = compare(a, b)
    assert (found.pairs, found.discordant, found.only_in_a) == (2, 0, 1)
    other = compare(a, replace(b, plan_hash="2f"))
    assert (other.pairs, other.discordant) == (2, 2)


def test_without_seeds_the_place_in_the_plan_pairs_and_is_told() -> None:
    a = _with_seeds(successes([True, False, True]), [None] * 3)
    b = _with_seeds(successes([True, True]), [None] * 2)
    found = compare(a, b)
    assert (found.pairs, found.won, found.only_in_a) == (2, 1, 1)
    assert any("place in the plan" in note for note in found.notes)


def test_the_same_seed_in_another_task_is_another_episode() -> None:
    a = _with_seeds(successes([True, False], tasks=["x", "y"]), [1, 1])
    b = _with_seeds(successes([False, True], tasks=["y", "x"]), [1, 1])
    found = compare(a, b)
    assert (found.pairs, found.discordant) == (2, 0)


def test_unequal_plans_are_compared_on_their_overlap_and_said_so() -> None:
    found = compare(successes([True] * 30), successes([True] * 20))
    assert (found.pairs, found.only_in_a, found.only_in_b) == (20, 10, 0)
    assert "The plans overlap in part: 10 episodes only in A, 0 only in B" in found.explanation


def test_nothing_in_common_is_refused_with_what_to_do() -> None:
    a = replace(successes([True]), plan_seed=1)
    b = replace(_with_seeds(successes([True]), [99]), plan_seed=2)
    with pytest.raises(InvalidSpec, match=r"plan seed 1 and plan seed 2.*same seed or plan"):
        compare(a, b)
    with pytest.raises(InvalidSpec, match="no task in common: 'x' and 'y'"):
        compare(successes([True], tasks=["x"]), successes([True], tasks=["y"]))
    with pytest.raises(InvalidSpec, match="no episode of B has ended"):
        compare(a, EvalResult(episodes=()))


def test_the_order_in_which_episodes_ended_does_not_matter() -> None:
    a, b = table(both=20, lost=3, won=9, neither=10)
    again = compare(replace(a, episodes=a.episodes[::-1]), b)
    assert again == compare(a, b)


def test_another_env_is_noted() -> None:
    a, b = successes([True], env="CartPole-v1"), successes([True], env="Pendulum-v1")
    assert compare(a, b).notes == ("A ran in CartPole-v1, B in Pendulum-v1",)


# Errors.


def test_errored_episodes_are_left_out_and_bound_the_difference() -> None:
    a = successes([True] * 40 + [False] * 10, errors={0})
    b = successes([True] * 40 + [False] * 10, errors={0, 1, 49})
    found = compare(a, b)
    assert (found.pairs, found.left_out) == (47, 3)
    assert dict(found.left_out_because) == {"errored in A and B": 1, "errored in B": 2}
    assert found.bounds == pytest.approx((-2 / 50, 2 / 50))
    assert "Had all of them gone for A the difference would be -0.040" in found.explanation


def test_everything_errored_is_underpowered_and_closes_the_gate() -> None:
    a = successes([True, True])
    found = compare(a, successes([True, True], errors={0, 1}), metric="success")
    assert found.verdict == "underpowered"
    assert found.pairs == 0
    gate = found.gate()
    assert not gate.is_open
    assert any("errored in B" in reason for reason in gate.reasons)
    assert "nothing to compare" in repr(found)
    json.loads(found.to_json())


# Tasks.


def test_tasks_are_listed_and_clustered_in_plan_order() -> None:
    tasks = [f"t{i % 3}" for i in range(60)]
    rng = np.random.default_rng(6)
    a = rng.normal(0, 1, size=60)
    b = a + rng.normal(0, 1, size=60) + 5.0 * (np.arange(60) % 3)
    found = compare(returns(a.tolist(), tasks=tasks), returns(b.tolist(), tasks=tasks))
    assert [task.task for task in found.by_task] == ["t0", "t1", "t2"]
    assert [task.pairs for task in found.by_task] == [20, 20, 20]
    assert found.by_task[2].difference == pytest.approx(10, abs=1)
    assert found.interval is not None
    assert found.clustered is not None
    narrow = found.interval.high - found.interval.low
    assert found.clustered.high - found.clustered.low > 4 * narrow
    assert "For other tasks like these 3" in found.explanation
    assert "t2" in repr(found)


@pytest.mark.parametrize("better", [False, True])
def test_pairs_that_all_differ_alike_bound_nothing_for_other_tasks(better: bool) -> None:
    tasks = [f"t{i % 12}" for i in range(60)]
    a, b = successes([False] * 60, tasks=tasks), successes([better] * 60, tasks=tasks)
    text = compare(a, b).explanation
    assert "between 0.000 and 0.000" not in text
    assert "between +1.000 and +1.000" not in text
    which = "all pairs differ alike" if better else "no pair differs"
    assert f"For other tasks like these 12 nothing is known: {which}." in text


def test_one_task_has_no_clustered_interval() -> None:
    found = compare(*table(both=5, lost=1, won=1, neither=5))
    assert found.clustered is None
    assert found.by_task == ()


# Gates.


@pytest.mark.parametrize(
    ("pairs", "margin", "is_open", "is_open_if_strict"),
    [
        ((20, 2, 12, 16), None, True, True),  # better
        ((20, 12, 2, 16), None, False, False),  # worse
        ((90, 1, 1, 90), None, True, True),  # equivalent
        ((10, 2, 2, 10), None, True, False),  # underpowered
        ((50, 6, 14, 30), 0.05, True, True),  # underpowered, and surely not worse
        ((900, 40, 12, 48), 0.05, True, True),  # surely worse, and by less than the margin given
        ((900, 40, 12, 48), None, False, False),
    ],
)
def test_gate(
    pairs: tuple[int, int, int, int],
    margin: float | None,
    is_open: bool,
    is_open_if_strict: bool,
) -> None:
    found = compare(*table(*pairs), margin=margin)
    assert found.gate().is_open is is_open
    assert found.gate(strict=True).is_open is is_open_if_strict
    assert found.gate().reasons


def test_strict_gate_counts_what_is_left_out_against_b() -> None:
    a = successes([True] * 200)
    found = compare(a, successes([True] * 200, errors=set(range(30))))
    assert found.verdict == "equivalent"
    assert found.gate().is_open
    strict = found.gate(strict=True)
    assert not strict.is_open
    assert "gone for A" in strict.reasons[-1]
    few = compare(a, successes([True] * 200, errors={0}))
    assert few.gate(strict=True).is_open


def test_strict_gate_does_not_guess_returns_that_are_missing() -> None:
    a = returns([5.0] * 100)
    b = replace(a, episodes=(*a.episodes[:-1], episode(99, error="boom")))
    found = compare(a, b)
    assert found.gate().is_open
    assert not found.gate(strict=True).is_open


# Form.


def test_a_comparison_is_a_table_for_people_and_json_for_machines() -> None:
    a, b = table(both=20, lost=2, won=12, neither=16)
    found = compare(replace(a, model="old"), replace(b, model="new"))
    text = repr(found)
    assert text.startswith("Comparison  B is BETTER than A in success rate.")
    for part in ("old", "new", "+0.200", "Tango", "exact McNemar", "0.013", "the default"):
        assert part in text
    values = json.loads(found.to_json())
    assert values["verdict"] == "better"
    assert values["interval"]["method"] == "tango"
    assert values["explanation"] == found.explanation
    assert values["left_out_because"] == {}


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"margin": -0.1}, "margin"),
        ({"margin": math.nan}, "margin"),
        ({"confidence": 1.0}, "confidence"),
        ({"metric": "reward"}, "metric"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments: dict[str, object], field: str) -> None:
    result = successes([True])
    with pytest.raises(InvalidSpec, match=field):
        compare(result, result, **arguments)  # pyright: ignore[reportArgumentType]


def test_a_result_survives_its_json() -> None:
    result = successes([True, None, False], tasks=["a", "a", "b"], errors={2}, env="E", model="m")
    assert EvalResult.from_json(result.to_json()) == result
    odd = EvalResult.from_json(returns([1.0, math.nan, math.inf]).to_json())
    assert [math.isnan(e.total_reward) for e in odd.episodes] == [False, True, True]


@pytest.mark.parametrize("text", ["", "[]", "3", "{}", '{"episodes": [{"index": 0}]}', "nonsense"])
def test_what_is_no_result_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="wants the JSON of a result"):
        EvalResult.from_json(text)


def test_a_result_with_a_wrong_type_is_refused() -> None:
    text = successes([True]).to_json().replace('"steps": 3', '"steps": "three"')
    with pytest.raises(ValueError, match="steps"):
        EvalResult.from_json(text)


@pytest.mark.parametrize("strict", [False, True])
def test_a_gate_is_closed_where_one_of_the_two_is_not_finished(strict: bool) -> None:
    a, b = (successes([True] * 80) for _ in range(2))
    assert compare(a, b).gate(strict=strict).is_open
    for pair, who in (((a, replace(b, planned=200)), "B"), ((replace(a, planned=200), b), "A")):
        found = compare(*pair)
        assert f"{who} is not finished: 80 of 200 planned episodes ended." in repr(found)
        assert not found.gate(strict=strict).is_open
        assert "again by the same command" in " ".join(found.gate(strict=strict).reasons)


def test_models_are_told_with_what_they_were_built_with() -> None:
    a, b = (
        successes([True] * 80, model="my:Noisy", model_kwargs={"eps": eps, "token": "hush"})
        for eps in ("0.8", "0.7")
    )
    found = compare(a, b)
    assert (found.a, found.b) == ("my:Noisy(eps=0.8)", "my:Noisy(eps=0.7)")
    assert found.conditions == (), "what is compared is no condition"
    assert "my:Noisy(eps=0.7)" in repr(found)
    long = compare(a, replace(b, model_kwargs={"path": "x" * 500})).b
    assert len(long) < 80
    assert long.endswith(" …)")


def test_a_run_that_a_declared_rule_ended_is_finished() -> None:
    a = successes([True] * 80)
    decision = StopRule.parse("width<0.3").update(80, 80)
    b = replace(a, planned=200, decision=decision)
    assert compare(a, b).unfinished == ()
    assert compare(a, b).gate().is_open


def test_a_gate_is_closed_where_most_pairs_are_left_out() -> None:
    a, some = successes([True] * 50), successes([True] * 50, errors=range(25))
    assert compare(a, some).gate().is_open
    found = compare(a, successes([True] * 50, errors=range(26))).gate()
    assert not found.is_open
    assert "More pairs were left out (26) than could be compared (24)." in found.reasons


def test_a_strict_gate_wants_the_same_env() -> None:
    a, b = (successes([True] * 200, env=env) for env in ("Lift-v1", "Lift-v2"))
    assert compare(a, b).gate().is_open
    found = compare(a, b).gate(strict=True)
    assert not found.is_open
    assert "They ran in envs of different names." in found.reasons


@pytest.mark.parametrize("folder", ["runs/a", Path("runs/a")])
def test_the_name_of_a_run_is_no_result(folder):
    with pytest.raises(InvalidSpec, match=r"b: wants an EvalResult.*read_run\(folder\)\.result"):
        compare(returns([1.0]), folder)


def test_a_margin_that_no_two_rates_can_leave_is_refused():
    a, b = table(both=5, lost=0, won=0, neither=5)
    with pytest.raises(InvalidSpec, match="difference of success rates below 1"):
        compare(a, b, margin=1)
    assert compare(a, b, margin=5, metric="return").margin == 5
