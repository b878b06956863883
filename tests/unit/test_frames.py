"""Frames: layouts, headers, and every message there and back."""

from __future__ import annotations

import struct

import msgspec
import numpy as np
import pytest

from rollmesh.errors import WireError
from rollmesh.limits import SIZE_LIMITS
from rollmesh.ports import (
    AdapterContext,
    EpisodeInfo,
    OddValue,
    PredictReply,
    PredictRequest,
    StepReply,
)
from rollmesh.spaces.space import Box, Discrete, Text
from rollmesh.spaces.space import Dict as DictSpace
from rollmesh.wire import sections
from rollmesh.wire.frames import (
    HEADER,
    HEADER_BYTES,
    MAGIC,
    REPLY,
    SHARED,
    VERSION,
    Layout,
    read_header,
)
from rollmesh.wire.framing import Framing
from rollmesh.wire.messages import Close, Kind, Message
from rollmesh.wire.sections import encode_section
from tests.unit.frame_toys import (
    ARM,
    BUTTON,
    COMPLETION,
    ODD,
    ROBOT,
    SMALL,
    arm_leaves,
    every_message,
    robot_leaves,
    same,
    step_reply,
    step_request,
)

MESSAGES = every_message()


def framing(*, observation=ROBOT, action=ARM, num_envs=8):
    made = Framing(report=lambda path, detail: pytest.fail(f"{path}: {detail}"))
    made.bind(observation.codec, action.codec, num_envs)
    return made


def to_bytes(frame):
    return b"".join([frame.header(), *frame.parts, frame.section])


def from_bytes(reader, data):
    header = read_header(data)
    middle = HEADER_BYTES + header.payload_bytes
    assert len(data) == middle + header.section_bytes
    reader.check(header)
    return reader.decode(header, data[HEADER_BYTES:middle], 0, data[middle:])


# --------------------------------------------------------------------------------- messages


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: f"{m.kind.name}-{m.request_id}")
def test_every_message_comes_back_as_it_was(message):
    ours, theirs = framing(), framing()
    back = from_bytes(theirs, to_bytes(ours.encode(message)))
    assert (back.kind, back.request_id) == (message.kind, message.request_id)
    assert same(back.body, message.body)


def test_all_messages_of_one_connection_come_back_in_order():
    ours, theirs = framing(), framing()
    for message in MESSAGES * 2:
        assert same(from_bytes(theirs, to_bytes(ours.encode(message))).body, message.body)


def test_a_step_needs_a_section_only_for_what_is_new():
    ours = framing()
    assert ours.encode(step_request()).section
    assert not ours.encode(step_request(2)).section
    assert ours.encode(step_request(3, ids=("ep-2",))).section
    assert not ours.encode(step_reply()).section
    assert ours.encode(step_reply(infos=({"a": 1},))).section


def test_episode_ids_are_sent_once_an_episode_and_lane():
    ours, theirs = framing(), framing()
    sent = [
        step_request(1, ids=("a",), env_indices=(0,)),
        step_request(2, ids=("b",), env_indices=(1,)),
        step_request(3, ids=("a",), env_indices=(0,)),
        step_request(4, ids=("b",), env_indices=(1,), next_episode_ids=("c",)),
        step_request(5, ids=("b",), env_indices=(1,), next_episode_ids=("c",)),
        step_request(6, ids=("x", "y"), rows=2, env_indices=(0, 1)),
        step_request(7, ids=("a",), env_indices=(0,)),
    ]
    frames = [ours.encode(message) for message in sent]
    assert [bool(frame.section) for frame in frames] == [
        True,
        True,
        False,
        True,
        False,
        True,
        False,
    ]
    for frame, message in zip(frames, sent, strict=True):
        assert same(from_bytes(theirs, to_bytes(frame)).body, message.body)


def test_the_quick_way_gives_the_same_bytes():
    ours, theirs = (framing(observation=SMALL, action=BUTTON) for _ in range(2))
    leaves = SMALL.codec.encode(np.arange(4, dtype=np.float32))
    for number, spent in enumerate([None, 5, None], 1):
        body = StepReply(observation=leaves, rewards=(0.5,), infos=({},), endpoint_total_ns=spent)
        message = Message(Kind.STEP, number, body)
        quick = ours.quick(message)
        slow = to_bytes(ours.encode(message))
        assert quick is None if number == 1 else quick == slow
        back = from_bytes(theirs, slow)
        assert same(back.body, body)
        plan = theirs.plans[slow[: HEADER_BYTES - 16]]
        assert same(plan.read(slow[HEADER_BYTES:], number, spent or 0, b""), back)


def predict(number=1, *, value=1.0, ids=("a",), request="env:step:1", horizon=None):
    leaves = SMALL.codec.encode(np.full(4, value, dtype=np.float32))
    body = PredictRequest(
        context=AdapterContext("session", "env", request),
        observation=leaves if len(ids) == 1 else SMALL.codec.gather([(leaves, 0)] * len(ids)),
        episode_info=tuple([EpisodeInfo(one, 2**70) for one in ids]),
        timeout_ms=7,
        execution_horizon=horizon,
    )
    return Message(Kind.PREDICT, number, body)


def predicted(number=1, *, frames=1, spent=None, request="env:step:1"):
    leaves = BUTTON.codec.encode(3)
    context = AdapterContext("session", "env", request)
    body = PredictReply(context=context, frames=(leaves,) * frames, endpoint_total_ns=spent)
    return Message(Kind.PREDICT, number, body)


@pytest.mark.parametrize(
    "message",
    [
        predict(),
        predict(2, value=2.0, ids=("b",), request="env:reset:22", horizon=4),
        predict(3, ids=("a", "b")),
        predicted(),
        predicted(2, spent=0),
        predicted(3, spent=2**40, request="x" * 300),
    ],
    ids=lambda message: f"{type(message.body).__name__}-{message.request_id}",
)
def test_the_quick_way_of_a_predict_gives_the_same_bytes(message):
    ours, theirs = (framing(observation=SMALL, action=BUTTON, num_envs=None) for _ in range(2))
    slow = to_bytes(ours.encode(message))
    assert ours.quick(message) == slow
    assert same(from_bytes(theirs, slow).body, message.body)
    plan = theirs.plans[slow[: HEADER_BYTES - 16]]
    assert plan.stop == len(slow)
    again = plan.read(slow[HEADER_BYTES : plan.end], 9, message_time(message), slow[plan.end :])
    assert again.request_id == 9
    assert same(again.body, message.body)


def message_time(message):
    body = message.body
    return body.timeout_ms if isinstance(body, PredictRequest) else body.endpoint_total_ns or 0


def test_the_quick_way_leaves_other_predicts_alone():
    ours = framing(observation=SMALL, action=BUTTON, num_envs=None)
    assert ours.quick(predicted(frames=2)) is None
    assert ours.quick(predicted(frames=0)) is None
    assert ours.quick(predict(ids=())) is None
    assert ours.quick(predict(request="x" * 10_000)) is None
    wrong = predict()
    wrong.body.observation[0] = np.zeros((1, 3), np.float32)
    assert ours.quick(wrong) is None
    assert framing(action=BUTTON).quick(predict()) is None, "ragged"


def test_a_predict_that_starts_like_one_before_is_checked_like_it():
    ours, theirs = (framing(observation=SMALL, action=BUTTON, num_envs=None) for _ in range(2))
    good = to_bytes(ours.encode(predict()))
    from_bytes(theirs, good)
    plan = theirs.plans[good[: HEADER_BYTES - 16]]
    payload, section = good[HEADER_BYTES : plan.end], good[plan.end :]
    with pytest.raises(WireError):
        plan.read(payload, 1, 0, b"\x00" * len(section))
    two = to_bytes(ours.encode(predict(ids=("a", "b"))))
    with pytest.raises(WireError, match="2 episodes for 1 rows"):
        plan.read(payload, 1, 0, two[HEADER_BYTES + read_header(two).payload_bytes :])
    ours.encode(predicted())
    reply = to_bytes(ours.encode(predicted()))
    from_bytes(theirs, reply)
    plan = theirs.plans[reply[: HEADER_BYTES - 16]]
    with pytest.raises(WireError, match="2 frames announced, 1 sent"):
        plan.read(reply[HEADER_BYTES : plan.end], 1, 0, encode_section(("s", "e", "r", 2)))


def test_a_step_with_odd_values_goes_no_quick_way_and_the_next_one_does():
    ours = framing(observation=SMALL)
    leaves = SMALL.codec.encode(np.zeros(4, np.float32))

    def reply(**more):
        return Message(
            Kind.STEP, 1, StepReply(observation=leaves, rewards=(0.0,), infos=({},), **more)
        )

    ours.encode(reply())
    assert ours.quick(reply()) is not None
    assert ours.quick(reply(odd=ODD[:1])) is None
    assert ours.quick(reply()) is not None


@pytest.mark.parametrize("row", [-1, 1])
def test_p12_an_odd_value_of_a_row_that_is_not_there_is_refused(row):
    data = to_bytes(framing().encode(step_reply(odd=(OddValue(row, "nan", "observation"),))))
    with pytest.raises(WireError, match="not there"):
        from_bytes(framing(), data)


def test_ragged_leaves_do_not_go_the_quick_way():
    ours = framing()
    ours.encode(step_reply())
    assert ours.quick(step_reply(2)) is None


def test_the_quick_way_leaves_out_nothing():
    ours = framing()
    ours.encode(step_request())
    ours.encode(step_request())
    assert ours.quick(step_request(2)) is not None
    assert ours.quick(step_request(2, ids=("other",))) is None
    assert ours.quick(step_request(2, env_indices=(1,))) is None
    assert ours.quick(step_request(2, next_episode_ids=("n",))) is None
    assert ours.quick(Message(Kind.CLOSE, 1, Close())) is None


def test_the_quick_way_refuses_what_does_not_fit():
    ours = framing(observation=SMALL, action=BUTTON)
    good = SMALL.codec.encode(np.zeros(4, np.float32))

    def reply(leaves, infos=({},), rewards=(0.0,)):
        body = StepReply(observation=leaves, rewards=rewards, infos=infos)
        return Message(Kind.STEP, 1, body)

    ours.encode(reply(good))
    assert ours.quick(reply(good)) is not None
    for odd in (
        reply([np.zeros((1, 3), np.float32)]),
        reply([b"x"]),
        reply([]),
        reply(good, infos=()),
        reply(good, infos=({"a": 1},)),
        reply(good, rewards=("x",)),
    ):
        assert ours.quick(odd) is None


def test_leaves_are_read_only_or_writable_as_their_buffer_is():
    data = to_bytes(framing().encode(step_reply()))
    header = read_header(data)
    payload = data[HEADER_BYTES : HEADER_BYTES + header.payload_bytes]
    fixed = framing().decode(header, payload, 0, b"").body.observation[0]
    free = framing().decode(header, bytearray(payload), 0, b"").body.observation[0]
    assert (fixed.flags.writeable, free.flags.writeable) == (False, True)
    assert free.flags.aligned


def test_big_seeds_come_back():
    episode = EpisodeInfo("e", -(2**70))
    message = next(m for m in MESSAGES if m.kind is Kind.PREDICT and not m.is_reply)
    body = type(message.body)(
        context=message.body.context, observation=robot_leaves(), episode_info=(episode,)
    )
    data = to_bytes(framing().encode(Message(Kind.PREDICT, 1, body)))
    assert from_bytes(framing(), data).body.episode_info == (episode,)


def test_final_observations_belong_to_their_completions():
    plain = type(COMPLETION)(env_index=0, terminated=False, truncated=True)
    message = step_reply(rows=2, completions=(plain, COMPLETION))
    back = from_bytes(framing(), to_bytes(framing().encode(message))).body.completions
    assert back[0].final_observation is None
    assert same(back[1].final_observation, robot_leaves())


@pytest.mark.parametrize(
    "space",
    [
        DictSpace(()),
        Box((0, 3), np.float32, 0, 1),
        Box((), np.float64, 0, 1),
        Box((3,), np.bool_, 0, 1),
        Discrete(5, 2),
        Text(0, 5, None),
    ],
    ids=repr,
)
@pytest.mark.parametrize("rows", [1, 3])
def test_odd_spaces_come_back(space, rows):
    values = {
        "Dict": {},
        "Box": np.zeros(getattr(space, "shape", ()), getattr(space, "dtype", None)),
        "Discrete": 4,
        "Text": "häß",
    }
    leaves = space.codec.encode_many([values[type(space).__name__]] * rows)
    body = StepReply(observation=leaves, rewards=(1.0,) * rows, infos=({},) * rows)
    data = to_bytes(framing(observation=space).encode(Message(Kind.STEP, 1, body)))
    assert same(from_bytes(framing(observation=space), data).body.observation, leaves)


# ------------------------------------------------------------------------- what is not sent


@pytest.mark.parametrize(
    "message",
    [
        Message(Kind.STEP, 1, Close()),
        Message(Kind.STEP, 1, object()),
        Message(Kind.CLOSE, -1, Close()),
        Message(Kind.CLOSE, 2**64, Close()),
        step_request(env_indices=(-1,)),
        step_request(env_indices=(SIZE_LIMITS.rows,)),
        step_request(rows=3, env_indices=(1,)),
        step_reply(infos=({}, {})),
        Message(Kind.STEP, 1, StepReply(observation=robot_leaves(), rewards=("x",), infos=({},))),
        Message(Kind.STEP, 1, StepReply(observation=[], rewards=(1.0,), infos=({},))),
        Message(Kind.STEP, 1, StepReply(observation=[b""] * 4, rewards=(1.0,), infos=({},))),
        Message(Kind.PREDICT, 1, StepReply(observation=arm_leaves(), rewards=(1.0,), infos=({},))),
    ],
)
def test_a_message_that_has_no_form_is_refused_before_it_is_sent(message):
    with pytest.raises(WireError):
        framing().encode(message).header()


def test_leaves_that_are_not_contiguous_are_refused():
    space = Box((4, 4), np.float32, 0, 1)
    leaf = np.zeros((1, 8, 4), np.float32)[:, ::2]
    body = StepReply(observation=[leaf], rewards=(1.0,), infos=({},))
    with pytest.raises(WireError, match="contiguous"):
        framing(observation=space).encode(Message(Kind.STEP, 1, body))


def test_a_message_over_the_limit_is_refused_and_the_ids_are_sent_again(monkeypatch):
    ours = framing()
    small = type(SIZE_LIMITS)(message_bytes=10)
    with monkeypatch.context() as patch:
        patch.setattr("rollmesh.wire.frame_writing.SIZE_LIMITS", small)
        with pytest.raises(WireError, match="at most 10"):
            ours.encode(step_request())
    assert ours.encode(step_request()).section


def test_leaves_are_refused_before_the_spaces_are_known():
    with pytest.raises(WireError, match="before the spaces are known"):
        Framing().encode(step_reply())
    data = to_bytes(framing().encode(step_reply()))
    with pytest.raises(WireError, match="before the spaces are known"):
        Framing().check(read_header(data))


def test_a_predict_request_is_read_over_before_the_spaces_are_known():
    (request,) = [m for m in every_message() if isinstance(m.body, PredictRequest)]
    frame = framing().encode(request)
    header = read_header(to_bytes(frame))
    unbound = Framing()
    unbound.check(header)
    message = unbound.decode(header, b"".join(frame.parts), 0, frame.section)
    assert message == Message(Kind.PREDICT, request.request_id, None, message.nbytes)


# ------------------------------------------------------------------------- what is not read


def header(**changes):
    fields = {
        "magic": MAGIC,
        "version": VERSION,
        "kind": int(Kind.STEP),
        "flags": REPLY,
        "rows": 1,
        "lane": 0,
        "leaves": 4,
        "slot": 0,
        "payload": 0,
        "section": 0,
        "page": 0,
        "request_id": 1,
        "time": 0,
    }
    fields.update(changes)
    return HEADER.pack(*fields.values())


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"magic": 0x47}, "no rollmesh message"),
        ({"version": VERSION + 1}, "frame version"),
        ({"kind": 0}, "unknown kind"),
        ({"kind": 19}, "unknown kind"),
        ({"flags": 0x80}, "flags"),
        ({"payload": SIZE_LIMITS.message_bytes + 1}, "at most"),
        ({"payload": 2**63}, "at most"),
        ({"section": 2**32 - 1}, "at most"),
        ({"payload": SIZE_LIMITS.message_bytes, "section": 1}, "at most"),
        ({"rows": SIZE_LIMITS.rows + 1}, "rows"),
        ({"lane": SIZE_LIMITS.rows}, "rows"),
        ({"slot": 1}, "not shared"),
        ({"page": 1}, "not shared"),
    ],
)
def test_p12_a_header_over_a_limit_is_refused(changes, why):
    with pytest.raises(WireError, match=why):
        read_header(header(**changes))


def test_a_header_at_the_limits_is_read():
    read = read_header(
        header(
            flags=REPLY | SHARED,
            payload=SIZE_LIMITS.message_bytes,
            rows=SIZE_LIMITS.rows,
            lane=SIZE_LIMITS.rows - 1,
            slot=7,
            page=2**32 - 1,
            request_id=2**64 - 1,
            time=2**64 - 1,
        )
    )
    assert (read.payload_bytes, read.request_id) == (SIZE_LIMITS.message_bytes, 2**64 - 1)


def test_a_smaller_limit_holds_before_admission():
    with pytest.raises(WireError, match="at most 100 "):
        read_header(header(payload=101), 0, 100)


@pytest.mark.parametrize(
    "changes",
    [
        {"payload": 2**20},
        {"payload": 8},
        {"rows": 9},
        {"rows": 0},
        {"leaves": 3},
        {"leaves": 5},
        {"leaves": 0},
        {"leaves": 2**16 - 1},
        {"kind": int(Kind.CLOSE), "payload": 8},
        {"kind": int(Kind.CLOSE), "leaves": 4, "rows": 0},
        {"kind": int(Kind.RESET), "leaves": 8, "payload": 2**20},
    ],
)
def test_p12_what_the_spaces_cannot_have_is_refused_before_allocation(changes):
    reader = framing(observation=ARM)
    fields = {"leaves": 1, "payload": 40} | changes
    with pytest.raises(WireError):
        reader.check(read_header(header(**fields)))


def test_p12_lengths_of_ragged_leaves_must_add_up():
    data = bytearray(to_bytes(framing().encode(step_reply())))
    place = HEADER_BYTES + 8
    (length,) = struct.unpack_from("<Q", data, place)
    for odd in (0, length - 8, length + 8, 2**63, 2**64 - 1):
        struct.pack_into("<Q", data, place, odd)
        with pytest.raises(WireError):
            from_bytes(framing(), bytes(data))


def test_p12_an_odd_text_is_refused_also_after_a_good_one():
    reader = framing()
    good = to_bytes(framing().encode(step_reply()))
    from_bytes(reader, good)
    odd = good.replace(b"pick up", b"pick\xffup")
    with pytest.raises(WireError, match="UTF-8"):
        from_bytes(reader, odd)
    from_bytes(reader, good)


def test_p12_odd_bools_are_refused():
    space = Box((3,), np.bool_, 0, 1)
    body = StepReply(observation=[np.ones((1, 3), bool)], rewards=(1.0,), infos=({},))
    data = to_bytes(framing(observation=space).encode(Message(Kind.STEP, 1, body)))
    with pytest.raises(WireError, match="bool"):
        from_bytes(framing(observation=space), data.replace(b"\1\1\1", b"\1\2\1"))


def test_p12_remembered_ids_are_bounded():
    reader = framing()
    for ids in (("a", "b"), ("x" * (SIZE_LIMITS.key_bytes + 1),)):
        frame = framing().encode(step_request())
        frame.section = encode_section((ids, (), ()))
        with pytest.raises(WireError, match="episode ids"):
            from_bytes(reader, to_bytes(frame))


def test_a_layout_knows_its_bytes_beforehand():
    assert Layout(SMALL.codec, 3).nbytes == 48
    assert Layout(BUTTON.codec, 1).nbytes == 16
    assert Layout(Box((3,), np.uint8, 0, 255).codec, 1).nbytes == 16
    layout = Layout(ROBOT.codec, 2)
    assert (layout.nbytes, layout.ragged, layout.count) == (None, 1, 4)
    assert layout.least_bytes == 2 * 8 * 8 * 3 + 48 + 16


@pytest.mark.parametrize(
    ("read", "values"),
    [
        (sections.read_reset_reply, ((b"",), (), 3)),
        (sections.read_step_reply, ((b"",), (), (), 3)),
        (sections.read_step_reply, ((b"",),)),
    ],
)
def test_p12_a_section_with_too_much_or_too_little_is_refused(read, values):
    with pytest.raises(WireError, match="length"):
        read(msgspec.msgpack.encode(values))
