"""The learned wait under anything that may happen: it never hangs, leaks, or waits for too long."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rollmesh.endpoint.models.batch_wait import CostCurve, LearnedWait

MS = 1_000_000
ROUTES = ("one", "two")
EPISODES = tuple("abcdef")

happenings = st.lists(
    st.tuples(
        st.sampled_from(["ask", "answer", "end", "release", "took", "look"]),
        st.sampled_from(ROUTES),
        st.lists(st.sampled_from(EPISODES), min_size=1, unique=True),
        st.integers(0, 200 * MS),
    ),
    max_size=60,
)


@given(happenings, st.sampled_from([(), (1, 2, 4)]))
def test_whatever_happens_a_wait_is_bounded_and_no_clock_is_lost(happened, sizes):
    policy = LearnedWait(4, sizes)
    now, known = 1, {route: set() for route in ROUTES}
    for what, route, episodes, passed in happened:
        now += passed
        ids = [f"{route}/{episode}" for episode in episodes]
        if what == "ask":
            policy.asked(route, ids, now)
            known[route].update(ids)
        elif what == "answer":
            policy.answered(ids, now)
        elif what == "end":
            policy.ended(route, ids, now)
            known[route].difference_update(ids)
        elif what == "release":
            policy.released(route, list(known[route]))
            known[route].clear()
        elif what == "took":
            policy.took(len(ids), passed)
        else:
            fixed_ns, _ = policy.cost.line
            pause = policy.pause(len(ids), now, now)
            if pause is not None:
                assert 0 < pause.ns <= fixed_ns
                assert len(ids) < pause.rows <= 4
            assert policy.pause(len(ids), now, now + int(fixed_ns)) is None
    for route in ROUTES:
        policy.released(route, list(known[route]))
    assert policy.clocks == 0


@given(st.lists(st.tuples(st.integers(1, 500), st.integers(0, 10**11)), min_size=1, max_size=100))
def test_a_line_of_costs_is_never_below_zero(forwards):
    curve = CostCurve()
    for rows, duration_ns in forwards:
        curve.add(rows, duration_ns)
    fixed_ns, row_ns = curve.line
    assert fixed_ns >= 0.0
    assert row_ns >= 0.0
