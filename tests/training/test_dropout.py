import pytest
import torch
from conftest import FAMILIES
from transformers import AutoModel, BertConfig, BertModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from headhunt.training import dropout
from headhunt.training.dropout import QUICK_ATTENTION, attention, quick_dropout

CPU = torch.device("cpu")
ALMOST_NONE = 1e-9  # not 0, which is left to torch


def make_inputs(rows: int = 3, tokens: int = 5) -> tuple[torch.Tensor, ...]:
    rng = torch.Generator().manual_seed(0)
    return tuple(torch.randn(rows, 2, tokens, 4, generator=rng).requires_grad_() for _ in range(3))


def make_mask(kind: str) -> torch.Tensor | None:
    kept = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0]]).bool()[:, None, None, :]
    return {"none": None, "boolean": kept, "added": torch.zeros(kept.shape).masked_fill(~kept, -1e9)}[kind]


@pytest.mark.parametrize("kind", ["none", "boolean", "added"])
@pytest.mark.parametrize("scaling", [None, 0.3])
def test_attention_and_its_gradients_are_those_of_torch(kind: str, scaling: float | None) -> None:
    results = []
    for function, rate in ((attention, ALMOST_NONE), (sdpa_attention_forward, 0.0)):
        inputs = make_inputs()
        output, _ = function(
            torch.nn.Module(), *inputs, make_mask(kind), dropout=rate, scaling=scaling, is_causal=False
        )
        output.square().sum().backward()
        results.append([output, *(x.grad for x in inputs)])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_attention_of_a_text_without_any_token_is_finite() -> None:
    output, _ = attention(torch.nn.Module(), *make_inputs(), torch.zeros(3, 1, 1, 5, dtype=torch.bool), dropout=0.5)
    assert output.isfinite().all()


def test_dropout_of_attention_has_the_right_rate_and_mean() -> None:
    query, key = torch.zeros(1, 1, 200, 4), torch.zeros(1, 1, 200, 4)  # every weight is 1/200
    weights, _ = attention(torch.nn.Module(), query, key, torch.eye(200)[None, None], None, dropout=0.25)
    assert abs(float((weights == 0).float().mean()) - 0.25) < 0.02
    assert abs(float(weights.sum()) / 200 - 1) < 0.02


@pytest.mark.parametrize("count", [1, 7, 8, 10_001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_keeps_and_scales_elements_of_any_number(count: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    kept = dropout._drop(torch.ones(count, dtype=dtype), 0.25)
    assert kept.shape == (count,) and kept.dtype == dtype
    assert set(kept.tolist()) <= {0.0, torch.tensor(4 / 3, dtype=dtype).item()}
    assert count < 10_000 or abs(float((kept == 0).float().mean()) - 0.25) < 0.02


def test_a_model_on_a_cpu_is_trained_with_it_and_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    drop = dropout._drop
    monkeypatch.setattr(dropout, "_drop", lambda x, rate: rates.append(rate) or drop(x, rate))
    config = BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.2,
    )  # fmt: skip
    model = BertModel(config).train()
    ids, mask = torch.ones(2, 4, dtype=torch.long), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    with quick_dropout(model, CPU):
        assert model.config._attn_implementation == QUICK_ATTENTION
        torch.manual_seed(0)
        first = model(ids, mask).last_hidden_state
        assert rates.count(0.2) == 1 and rates.count(0.1) == 3  # attention; embeddings, attention output, feed-forward
        torch.manual_seed(0)
        assert torch.equal(model(ids, mask).last_hidden_state, first)
        model.eval()
        predicted = model(ids, mask).last_hidden_state
    assert model.config._attn_implementation == "sdpa"
    assert torch.equal(model(ids, mask).last_hidden_state, predicted)
    assert len(rates) == 8  # none of it while predicting


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_computes_the_same_but_for_dropout(encoders, monkeypatch, family):
    monkeypatch.setattr(dropout, "_drop", lambda x, rate: x)
    model = AutoModel.from_pretrained(encoders(family)).eval()
    ids = torch.randint(5, 20, (3, 12), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, 5:] = mask[2, 1:] = 0
    expected = model(input_ids=ids, attention_mask=mask).last_hidden_state
    model.train()
    with quick_dropout(model, CPU):
        found = model(input_ids=ids, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(found[mask.bool()], expected[mask.bool()], rtol=1e-4, atol=1e-5)
