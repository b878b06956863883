"""A torch module as a policy."""

from __future__ import annotations

import numpy as np
import pytest

from rollmesh.endpoint.models.model_loading import open_model
from rollmesh.errors import EndpointFault
from rollmesh.ports import AdapterContext, EpisodeInfo, PredictRequest, SubmitsOperations
from rollmesh.spaces.space import Box, Dict, Discrete, Text

pytestmark = [pytest.mark.slow, pytest.mark.interop]
torch = pytest.importorskip("torch")

OBSERVATION = Box((3,), np.float64)


def predict(port, space, rows):
    request = PredictRequest(
        context=AdapterContext("s", "r", "1"),
        observation=space.codec.encode_many(rows),
        episode_info=tuple(EpisodeInfo(f"e{i}", i) for i in range(len(rows))),
    )
    return port.predict(request)


def opened(module, action_space, observation_space=OBSERVATION, **given):
    return open_model(
        module, observation_space=observation_space, action_space=action_space, **given
    )


ROWS = [np.array([i, 0, 1], np.float64) for i in range(4)]


def test_a_module_gets_batches_in_its_own_dtype_without_gradients():
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Dropout(0.9))
    space = Box((2,))
    port = opened(module, space)
    assert not module.training
    frames = predict(port, OBSERVATION, ROWS).frames
    wanted = module[0](torch.tensor(np.stack(ROWS), dtype=torch.float32)).detach().numpy()
    np.testing.assert_allclose(space.codec.decode_stacked(frames[0], 4), wanted, rtol=1e-6)
    assert len(predict(port, OBSERVATION, ROWS[:1]).frames) == 1


@pytest.mark.parametrize("chunk", [1, 4])
def test_a_module_in_bfloat16_which_numpy_lacks_gives_its_actions(chunk):
    module = torch.nn.Sequential(torch.nn.Linear(3, 2 * chunk), torch.nn.Unflatten(1, (chunk, 2)))
    space = Box((2,))
    frames = predict(opened(module.bfloat16(), space), OBSERVATION, ROWS).frames
    wanted = module(torch.tensor(np.stack(ROWS), dtype=torch.bfloat16)).detach().float().numpy()
    for time, frame in enumerate(frames):
        got = space.codec.decode_stacked(frame, 4)
        assert got.tolist() == wanted[:, time].tolist()
    assert len(frames) == chunk


def test_scores_choose_a_discrete_action():
    class Scores(torch.nn.Module):
        def forward(self, x):
            return torch.stack([x[:, 0], 2 - x[:, 0], x[:, 0] * 0], dim=1)

    space = Discrete(3, start=5)
    frames = predict(opened(Scores(), space), OBSERVATION, ROWS).frames
    assert space.codec.decode_stacked(frames[0], 4).tolist() == [6, 5, 5, 5]


def test_scores_of_other_actions_than_there_are_are_refused():
    port = opened(torch.nn.Linear(3, 4), Discrete(2))
    with pytest.raises(EndpointFault, match=r"4 numbers a row.* no scores of 2 actions; give it 2"):
        predict(port, OBSERVATION, ROWS)


def test_a_time_axis_makes_chunks():
    module = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Unflatten(1, (4, 2)))
    frames = predict(opened(module, Box((2,))), OBSERVATION, ROWS).frames
    assert len(frames) == 4
    wrong = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Unflatten(1, (2, 2, 2)))
    port = opened(wrong, Box((2,)))
    with pytest.raises(EndpointFault, match=r"returned shape \(4, 2, 2, 2\), wanted \(B, T, 2\)"):
        predict(port, OBSERVATION, ROWS)


def test_dicts_go_in_and_out_leaf_by_leaf():
    observation = Dict({"image": Box((2, 2), np.uint8), "words": Text(0, 8)})
    action = Dict({"arm": Box((2,)), "grip": Discrete(2)})

    class Both(torch.nn.Module):
        def forward(self, table):
            assert table["image"].dtype == torch.uint8
            assert table["words"] == ("go", "stop")
            mean = table["image"].float().mean(dim=(1, 2))
            return {"arm": mean[:, None].repeat(1, 2), "grip": (mean > 1).long()}

    rows = [
        {"image": np.full((2, 2), i * 2, np.uint8), "words": word}
        for i, word in enumerate(("go", "stop"))
    ]
    frames = predict(opened(Both(), action, observation), observation, rows).frames
    decoded = action.codec.decode(frames[0], 1)
    assert decoded["arm"].tolist() == [2, 2]
    assert decoded["grip"] == 1


def test_a_module_class_lives_on_its_own_thread_and_corners_win():
    class Linear(torch.nn.Linear):
        pass

    port = opened(Linear, Box((2,)), model_kwargs={"in_features": 3, "out_features": 2})
    assert isinstance(port, SubmitsOperations)
    assert len(predict(port, OBSERVATION, ROWS).frames) == 1
    port.abandon(())

    class Own(torch.nn.Module):
        def predict(self, observation):
            assert isinstance(observation, np.ndarray)
            return torch.zeros(2, requires_grad=True)

    assert len(predict(opened(Own(), Box((2,))), OBSERVATION, ROWS).frames) == 1
