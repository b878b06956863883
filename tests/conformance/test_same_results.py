"""One plan, one result: whatever lies between model, runtime and env."""

from __future__ import annotations

import functools

import pytest

from tests.conformance.links import LINKS, SIDES, SUBJECTS, local, remote


@functools.cache
def expected(name):
    return local(SUBJECTS[name])


@pytest.fixture
def link(request, monkeypatch):
    """Give a link, with clients made to take it."""
    link = LINKS[request.param]
    for name, value in link.environment:
        monkeypatch.setenv(name, value)
    return link


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("link", LINKS, indirect=True)
@pytest.mark.parametrize("name", SUBJECTS)
def test_the_same_plan_gives_the_same_trace_infos_and_episodes(name, link, side):
    outcome = remote(SUBJECTS[name], link, side)
    assert outcome.episodes == expected(name).episodes
    assert outcome.infos == expected(name).infos
    assert outcome.digest == expected(name).digest


def test_the_subjects_differ_and_play_episodes_of_several_lengths():
    outcomes = [expected(name) for name in SUBJECTS]
    assert len({outcome.digest for outcome in outcomes}) > len(SUBJECTS) - 2
    for outcome in outcomes:
        assert len({episode[2] for episode in outcome.episodes}) > 1
