"""Heads that read every layer: widths, blocks of features and symmetry."""

from __future__ import annotations

import pytest
import torch

from headhunt.modeling.architecture import COMPARISONS, POOLINGS, SYMMETRIC, Head
from headhunt.modeling.heads import COMPARISONS as COMPARISON_MODULES
from headhunt.modeling.heads import HeadModule

WIDTH, STATES = 6, 4
FIXED = {"cls": 1, "mean": 1, "max": 1, "mean_max": 2, "cls_mean_max": 3}  # blocks of each layer


def states_of(batch: int, seed: int = 0) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(batch, 5, WIDTH, generator=generator) for _ in range(STATES))


def classified(module: HeadModule, states: tuple[torch.Tensor, ...], mask: torch.Tensor) -> torch.Tensor:
    """Return the features that the output layer classifies."""
    inputs: list[torch.Tensor] = []
    module.eval()
    handle = module.output.register_forward_pre_hook(lambda layer, args: inputs.append(args[0]))
    module(states, mask)
    handle.remove()
    return inputs[0]


@pytest.mark.parametrize("layers", [1, 2, "concat"])
@pytest.mark.parametrize("siamese", [None, *COMPARISONS])
@pytest.mark.parametrize("pooling", FIXED)
def test_feature_blocks_add_up_to_the_width_of_the_output_layer(layers, siamese, pooling):
    module = HeadModule(Head(layers=layers, pooling=pooling, siamese=siamese), WIDTH, STATES, 3)
    assert sum(module.feature_blocks) == module.output.in_features
    features = classified(module, states_of(8), torch.ones(8, 5, dtype=torch.bool))
    assert features.shape == (4 if siamese else 8, module.output.in_features)
    blocks = FIXED[pooling] * (STATES if layers == "concat" else 1)
    expected = {None: blocks, "difference": blocks, "concat": 4 * blocks, "combined": 3 * blocks}.get(siamese, 1)
    assert len(module.feature_blocks) == expected
    if siamese == "combined":
        assert module.feature_blocks == (WIDTH,) * 2 * blocks + (1,) * blocks


@pytest.mark.parametrize("pooling", POOLINGS)
def test_feature_blocks_of_every_pooling_add_up(pooling):
    module = HeadModule(Head(pooling=pooling), WIDTH, STATES, 3)
    assert sum(module.feature_blocks) == module.output.in_features


def test_last_mean_is_the_mean_of_the_last_layer():
    module = HeadModule(Head(layers="concat", pooling="cls_mean_max"), WIDTH, STATES, 3)
    states, mask = states_of(2), torch.tensor([[True] * 5, [True, True, True, False, False]])
    expected = torch.stack([states[-1][0].mean(0), states[-1][1, :3].mean(0)])
    torch.testing.assert_close(classified(module, states, mask)[:, module.last_mean], expected)


@pytest.mark.parametrize("given", [{"layers": 1}, {"siamese": "combined"}, {"pooling": "max"}])
def test_last_mean_is_unknown_in_other_heads(given):
    head = Head(**{"layers": "concat", "pooling": "cls_mean_max", **given})
    assert HeadModule(head, WIDTH, STATES, 3).last_mean is None


def test_concat_pools_each_layer_by_itself():
    module = HeadModule(Head(layers="concat", pooling="cls_mean_max"), WIDTH, STATES, 3)
    states, mask = states_of(2), torch.tensor([[True] * 5, [True, True, True, False, False]])
    expected = []
    for state in states:
        for row, length in ((0, 5), (1, 3)):
            tokens = state[row, :length]
            expected.append(torch.cat([tokens[0], tokens.mean(0), tokens.amax(0)]))
    expected_rows = torch.stack([torch.cat(expected[row::2]) for row in (0, 1)])
    assert torch.allclose(module.pool(states, mask), expected_rows, atol=1e-6)


def test_features_of_every_layer_do_not_depend_on_padding():
    module = HeadModule(Head(layers="concat", pooling="cls_mean_max", siamese="combined"), WIDTH, STATES, 3)
    states, mask = states_of(4), torch.ones(4, 5, dtype=torch.bool)
    mask[1, 3:] = mask[2, 1:] = False
    changed = tuple(torch.where(mask.unsqueeze(-1), state, 1e3) for state in states)
    assert torch.equal(classified(module, states, mask), classified(module, changed, mask))


def test_combined_has_one_cosine_for_each_block():
    module = HeadModule(Head(layers="concat", pooling="mean_max", siamese="combined"), WIDTH, STATES, 3)
    features = classified(module, states_of(2), torch.ones(2, 5, dtype=torch.bool))[0]
    u, v = module.pool(states_of(2), torch.ones(2, 5, dtype=torch.bool)).view(2, -1, WIDTH)
    assert torch.allclose(features[-len(u) :], torch.nn.functional.cosine_similarity(u, v, dim=-1), atol=1e-6)
    assert torch.equal(features[: u.numel()], (u - v).abs().flatten())
    assert torch.equal(features[u.numel() : 2 * u.numel()], (u * v).flatten())


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparison_is_symmetric_if_it_is_listed_as_such(name):
    compare = COMPARISON_MODULES[name](12, 6).eval()
    u, v = torch.randn(2, 7, 12, generator=torch.Generator().manual_seed(1))
    assert torch.equal(compare(u, v), compare(v, u)) == (name in SYMMETRIC)
