"""Ids (R43) under any clock at all."""

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st

from rollmesh.ids import Uuid7Mint

YEAR_10_000_NS = 253_402_300_800_000_000_000
wall_times = st.lists(
    st.one_of(
        st.integers(min_value=0, max_value=YEAR_10_000_NS),
        st.integers(min_value=1_700_000_000_000_000_000, max_value=1_700_000_000_000_010_000),
    ),
    min_size=1,
    max_size=100,
)


class ListClock:
    def __init__(self, times_ns):
        self._times_ns = iter(times_ns)

    def wall_ns(self):
        return next(self._times_ns)

    def monotonic_ns(self):
        return 0


@given(wall_times)
def test_r43_ids_sort_in_the_order_they_were_made_whatever_the_clock_does(times_ns):
    mint = Uuid7Mint(ListClock(times_ns))
    texts = [mint.mint() for _ in times_ns]
    assert texts == sorted(set(texts))
    assert len(texts) == len(times_ns)


@given(wall_times)
def test_r43_every_id_is_a_well_formed_uuid_of_version_7(times_ns):
    mint = Uuid7Mint(ListClock(times_ns))
    for _ in times_ns:
        text = mint.mint()
        parsed = uuid.UUID(text)
        assert (str(parsed), parsed.version, parsed.variant) == (text, 7, uuid.RFC_4122)


@given(st.lists(st.integers(min_value=1, max_value=10**12), min_size=1, max_size=50))
def test_r43_with_a_clock_that_goes_on_an_id_tells_its_time_to_the_microsecond(steps_ns):
    now_ns, times_ns = 1_700_000_000_000_000_000, []
    for step_ns in steps_ns:
        now_ns += step_ns + 1_000
        times_ns.append(now_ns)
    mint = Uuid7Mint(ListClock(times_ns))
    for time_ns in times_ns:
        value = uuid.UUID(mint.mint()).int
        stamped_ns = (value >> 80) * 1_000_000 + (value >> 64 & 0xFFF) * 1_000_000 // 4096
        assert 0 <= time_ns - stamped_ns < 1_000
