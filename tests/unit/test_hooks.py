"""Hooks: observers cannot hurt a route (R33), transforms end it (R34), chains (R35), cost (R36)."""

from __future__ import annotations

import inspect
import logging

import numpy as np
import pytest

from rollmesh import events
from rollmesh.errors import InvalidValue
from rollmesh.runtime.hooks import (
    EVENTS,
    STEP_EVENTS,
    TRANSFORMS,
    Dispatcher,
    Hooks,
    TransformContext,
    TransformFault,
    gather_hooks,
)
from rollmesh.spaces.space import Box

ROUTE = events.Route("env-1", "the-env", "the-model")
SPACE = Box((2,), "float32", -10.0, 10.0)


def started():
    return events.SessionStarted(session_id="s", route=ROUTE, env_id="env-1")


def context(rows=2):
    return TransformContext(
        session_id="s",
        route=ROUTE,
        env_indices=tuple(range(rows)),
        episode_ids=tuple(f"e{i}" for i in range(rows)),
        steps=(0,) * rows,
        space=SPACE,
    )


def payload(*rows):
    return SPACE.codec.encode_many([np.asarray(row, "float32") for row in rows or ((1, 2), (3, 4))])


class Recorder(Hooks):
    def __init__(self, name="", log=None):
        self.name, self.seen = name, [] if log is None else log

    def session_started(self, event):
        self.seen.append((self.name, event))


class Fails(Hooks):
    def __init__(self, error):
        self.error = error

    def session_started(self, event):
        raise self.error

    def step_completed(self, event):
        raise self.error


class Adds(Hooks):
    def __init__(self, amount):
        self.amount = amount

    def transform_observation(self, context, observation):
        return [observation[0] + np.float32(self.amount)]


class Doubles(Hooks):
    def transform_observation(self, context, observation):
        return [observation[0] * np.float32(2)]


class Returns(Hooks):
    """Both transforms return what they are given, or raise it."""

    def __init__(self, result):
        self.result = result

    def transform_observation(self, context, observation):
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result

    transform_action = transform_observation


# ----------------------------------------------------------------------- R33: the observers


def test_r33_the_methods_of_hooks_are_the_events_and_transforms():
    methods = {n for n, _ in inspect.getmembers(Hooks, inspect.isfunction) if n[0] != "_"}
    assert methods == {*EVENTS, *TRANSFORMS}


def test_r33_an_event_reaches_every_hook_in_order_and_is_the_same_object():
    log, event = [], started()
    dispatcher = Dispatcher([Recorder("a", log), Recorder("b", log)])
    assert dispatcher.session_started is not None
    dispatcher.session_started(event)
    assert [name for name, _ in log] == ["a", "b"]
    assert all(seen is event for _, seen in log)


@pytest.mark.parametrize("name", EVENTS)
def test_r33_each_event_has_its_own_method(name):
    seen = []
    dispatcher = Dispatcher([type("One", (Hooks,), {name: lambda _, event: seen.append(event)})()])
    getattr(dispatcher, name)("the event")
    assert seen == ["the event"]
    assert [n for n in (*EVENTS, *TRANSFORMS) if getattr(dispatcher, n) is not None] == [name]


@pytest.mark.parametrize("error", [ValueError("broken hook"), SystemExit("broken hook")])
def test_r33_a_failing_observer_is_logged_by_name_and_the_others_go_on(error, caplog):
    recorder = Recorder()
    dispatcher = Dispatcher([Fails(error), recorder])
    assert dispatcher.session_started is not None
    with caplog.at_level(logging.WARNING):
        dispatcher.session_started(started())
    assert len(recorder.seen) == 1
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert all(text in caplog.text for text in ("Fails", "session_started", "broken hook"))
    assert "Traceback" in caplog.text


def test_r33_a_keyboard_interrupt_passes_an_observer():
    dispatcher = Dispatcher([Fails(KeyboardInterrupt())])
    assert dispatcher.session_started is not None
    with pytest.raises(KeyboardInterrupt):
        dispatcher.session_started(started())


def test_r33_a_failing_observer_of_every_step_is_loud_once(caplog):
    dispatcher = Dispatcher([Fails(ValueError("again"))])
    assert dispatcher.step_completed is not None
    with caplog.at_level(logging.DEBUG):
        for _ in range(3):
            dispatcher.step_completed("event")
    assert [r.levelno for r in caplog.records] == [logging.ERROR, logging.DEBUG, logging.DEBUG]


def test_r33_step_events_are_events():
    assert set(STEP_EVENTS) < set(EVENTS)


# ------------------------------------------------------------------------- what is a hook


def test_r33_any_object_with_some_of_the_methods_is_a_hook():
    class Plain:
        def __init__(self):
            self.seen = []

        def session_started(self, event):
            self.seen.append(event)

    plain = Plain()
    dispatcher = Dispatcher([plain])
    assert dispatcher.session_started is not None
    dispatcher.session_started(started())
    assert len(plain.seen) == 1


def test_r33_a_function_hung_on_an_object_counts():
    hooks, seen = Hooks(), []
    hooks.session_started = seen.append
    dispatcher = Dispatcher([hooks])
    assert dispatcher.session_started is not None
    dispatcher.session_started(started())
    assert len(seen) == 1


def test_r33_an_attribute_that_cannot_be_called_is_no_hook():
    class WithLogger(Recorder):
        log = logging.getLogger("theirs")

    dispatcher = Dispatcher([WithLogger()])
    assert dispatcher.log is None
    assert dispatcher.session_started is not None


@pytest.mark.parametrize("hook", [object(), "text", print, {"session_started": print}])
def test_r33_an_object_without_any_hook_method_is_refused_with_their_names(hook):
    with pytest.raises(TypeError) as caught:
        Dispatcher([hook])
    assert all(name in str(caught.value) for name in (*EVENTS, *TRANSFORMS))


def test_r33_a_misspelt_method_is_not_silently_never_called():
    class Misspelt(Hooks):
        def on_episode_end(self, event):
            pass

    with pytest.raises(TypeError, match=r"none of the hook methods: .*episode_completed"):
        Dispatcher([Misspelt()])


def test_r33_a_class_is_refused_with_the_fix():
    with pytest.raises(TypeError, match=r"pass Recorder\(\)"):
        Dispatcher([Recorder])


def test_r33_a_coroutine_function_is_refused():
    class Async(Hooks):
        async def session_started(self, event):
            pass

    with pytest.raises(TypeError, match=r"Async\.session_started is a coroutine function"):
        Dispatcher([Async()])


def test_r33_a_generator_function_is_refused():
    class Yields(Hooks):
        def step_completed(self, event):
            yield event

    with pytest.raises(TypeError, match=r"Yields\.step_completed is a generator function"):
        Dispatcher([Yields()])


def test_r33_gather_hooks_takes_none_one_or_several():
    one, other = Recorder(), Recorder()
    assert gather_hooks(None) == ()
    assert gather_hooks(one) == (one,)
    assert gather_hooks([one, other]) == (one, other)
    assert gather_hooks((one,)) == (one,)


# ----------------------------------------------------------------------- R34: the transforms


def test_r34_a_transform_returns_the_payload_to_use():
    dispatcher = Dispatcher([Adds(1)])
    assert dispatcher.transform_observation is not None
    assert dispatcher.transform_action is None
    result = dispatcher.transform_observation(context(), payload((1, 2), (3, 4)), 2)
    np.testing.assert_array_equal(result[0], [[2, 3], [4, 5]])


def test_r35_transforms_apply_left_to_right():
    forth = Dispatcher([Adds(1), Doubles()]).transform_observation
    back = Dispatcher([Doubles(), Adds(1)]).transform_observation
    assert forth is not None
    assert back is not None
    np.testing.assert_array_equal(forth(context(1), payload((1, 2)), 1)[0], [[4, 6]])
    np.testing.assert_array_equal(back(context(1), payload((1, 2)), 1)[0], [[3, 5]])


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize(
    ("result", "words"),
    [
        (None, "returned None"),
        (ValueError("no idea"), "raised ValueError: no idea"),
        (SystemExit(1), "raised SystemExit: 1"),
        ([], "does not fit"),
        (payload((1, 2)), "does not fit"),
        (payload((1, 2), (3, 4)) * 2, "does not fit"),
        ([np.zeros((2, 2), "float64")], "does not fit"),
        ([np.zeros((2, 3), "float32")], "does not fit"),
        ("text", "does not fit"),
        (np.zeros((2, 2), "float32"), "does not fit"),
    ],
    ids=str,
)
def test_r34_what_goes_wrong_in_a_transform_is_raised_and_not_logged(name, result, words, caplog):
    transform = getattr(Dispatcher([Returns(result)]), name)
    with caplog.at_level(logging.DEBUG), pytest.raises(TransformFault, match=words) as caught:
        transform(context(), payload(), 2)
    assert caught.value.hook_name == "Returns"
    assert name in caught.value.detail
    assert caplog.records == []


def test_r34_the_fault_carries_its_cause():
    error = ValueError("no idea")
    transform = Dispatcher([Returns(error)]).transform_action
    assert transform is not None
    with pytest.raises(TransformFault) as caught:
        transform(context(), payload(), 2)
    assert caught.value.cause is error
    assert caught.value.__cause__ is error


def test_r34_a_payload_that_does_not_fit_has_the_refusal_as_its_cause():
    transform = Dispatcher([Returns([])]).transform_action
    assert transform is not None
    with pytest.raises(TransformFault) as caught:
        transform(context(), payload(), 2)
    assert isinstance(caught.value.cause, InvalidValue)


def test_r34_the_hook_at_fault_is_named_and_later_ones_are_not_asked():
    asked = []

    class Asked(Hooks):
        def transform_observation(self, context, observation):
            asked.append(context)
            return observation

    transform = Dispatcher([Adds(1), Returns(None), Asked()]).transform_observation
    assert transform is not None
    with pytest.raises(TransformFault) as caught:
        transform(context(), payload(), 2)
    assert caught.value.hook_name == "Returns"
    assert asked == []


def test_r34_a_keyboard_interrupt_passes_a_transform():
    transform = Dispatcher([Returns(KeyboardInterrupt())]).transform_action
    assert transform is not None
    with pytest.raises(KeyboardInterrupt):
        transform(context(), payload(), 2)


def test_r34_the_context_decodes_and_encodes():
    ctx = context(2)
    batch = payload((1, 2), (3, 4))
    row = ctx.decode(batch, 1)
    row += 1  # a copy
    np.testing.assert_array_equal(batch[0], [[1, 2], [3, 4]])
    encoded = ctx.encode([ctx.decode(batch), row])
    np.testing.assert_array_equal(encoded[0], [[1, 2], [4, 5]])
    SPACE.codec.verify(encoded, 2)


def test_r34_the_context_is_frozen():
    with pytest.raises(AttributeError):
        context().session_id = "other"


# ------------------------------------------------------------------- R35 and R36: dispatch


def test_r35_one_hooks_object_serves_many_dispatchers_and_is_left_alone():
    recorder = Recorder()
    before = dict(vars(recorder))
    dispatchers = [Dispatcher([recorder]) for _ in range(3)]
    for dispatcher in dispatchers:
        assert dispatcher.session_started is not None
        dispatcher.session_started(started())
    assert len(recorder.seen) == 3
    assert vars(recorder) == before


def test_r36_an_event_that_no_hook_overrides_is_none():
    dispatcher = Dispatcher([Recorder()])
    wanted = [n for n in (*EVENTS, *TRANSFORMS) if getattr(dispatcher, n) is not None]
    assert wanted == ["session_started"]


def test_r36_without_hooks_or_with_only_inherited_methods_nothing_is_called():
    for hooks in ([], [Hooks()], [Hooks(), Hooks()]):
        dispatcher = Dispatcher(hooks)
        assert all(getattr(dispatcher, n) is None for n in (*EVENTS, *TRANSFORMS))


def test_r36_a_method_overridden_in_between_counts():
    class Child(Recorder):
        pass

    assert Dispatcher([Child()]).session_started is not None
