"""Modules of a head (blocks, poolings, comparisons) and `HeadModule`, which joins them.

Every module takes token vectors (batch, tokens, width) and a mask (batch, tokens) that is true for real tokens. Padding
never affects a result. Each module has its output width as `width`, which the builder passes on.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from .architecture import Blocks, Convolutions, Head

# Factor of a standardised cosine or dot product: one feature can then change the output as fast as many.
SIMILARITY_SCALE = 16.0


class LayerMix(nn.Module):
    """A learned softmax mix of the outputs of all encoder layers, embeddings included."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(count))

    def forward(self, states: tuple[Tensor, ...]) -> Tensor:
        shares = self.weights.softmax(0)
        return torch.stack([share * state for share, state in zip(shares, states, strict=True)]).sum(0)


class Convolution(nn.Module):
    """Convolutions that keep the length, each followed by GELU and dropout."""

    def __init__(self, width: int, shape: Convolutions, dropout: float) -> None:
        super().__init__()
        widths = [width] + [shape.channels] * shape.layers
        steps = list(pairwise(widths))
        self.layers = nn.ModuleList(nn.Conv1d(a, b, shape.kernel, padding=shape.kernel // 2) for a, b in steps)
        # A skip connection needs equal widths: a linear map adapts the input where they differ.
        self.skips = nn.ModuleList(
            (nn.Identity() if a == b else nn.Linear(a, b, bias=False)) for a, b in steps if shape.skip
        )
        self.dropout = nn.Dropout(dropout)
        self.width = shape.channels

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        keep = mask.unsqueeze(-1).to(x.dtype)
        for i, layer in enumerate(self.layers):
            y = self.dropout(functional.gelu(layer((x * keep).transpose(1, 2)).transpose(1, 2)))
            x = y + self.skips[i](x) if self.skips else y
        return x


def make_norm(kind: str, width: int) -> nn.Module:
    """Return a norm of token vectors by its name in `architecture.NORMS`."""
    return nn.RMSNorm(width, eps=1e-6) if kind == "rms" else nn.LayerNorm(width)


class EncoderBlock(nn.Module):
    """Self-attention and a feed-forward layer, each with a norm and a skip connection.

    Args:
        width: Width of the token vectors.
        heads: Attention heads; the inner width is rounded up to a multiple.
        dropout: Dropout of both parts.
        inner: Inner width of the feed-forward layer; four times the width by default.
        activation: Its activation, a name of `architecture.ACTIVATIONS`.
        norm: A name of `architecture.NORMS`.
        post_norm: Normalise after each skip connection, not before each part.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        dropout: float,
        *,
        inner: int | None = None,
        activation: str = "gelu",
        norm: str = "layer",
        post_norm: bool = False,
    ) -> None:
        super().__init__()
        self.heads, self.size = heads, -(-width // heads)
        self.post_norm, self.gated = post_norm, activation == "swiglu"
        self.activation = getattr(functional, "silu" if self.gated else activation)
        attended, inner = heads * self.size, inner or 4 * width
        self.norm_attention, self.norm_feed = make_norm(norm, width), make_norm(norm, width)
        self.qkv, self.out = nn.Linear(width, 3 * attended), nn.Linear(attended, width)
        self.up, self.down = nn.Linear(width, 2 * inner if self.gated else inner), nn.Linear(inner, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        if self.post_norm:
            x = self.norm_attention(x + self._attend(x, mask))
            return self.norm_feed(x + self._feed(x))
        x = x + self._attend(self.norm_attention(x), mask)
        return x + self._feed(self.norm_feed(x))

    def _attend(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        query, key, value = self.qkv(x).view(batch, tokens, 3, self.heads, self.size).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None, None, :])
        return self.dropout(self.out(mixed.transpose(1, 2).reshape(batch, tokens, -1)))

    def _feed(self, x: Tensor) -> Tensor:
        up = self.up(x)
        if self.gated:
            up, gate = up.chunk(2, -1)
            return self.dropout(self.down(self.activation(up) * gate))
        return self.dropout(self.down(self.activation(up)))


class EncoderBlocks(nn.Module):
    """A stack of encoder blocks and a final norm."""

    def __init__(self, width: int, shape: Blocks, dropout: float) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(EncoderBlock(width, shape.heads, dropout) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(width)
        self.width = width

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, mask)
        return self.norm(x)


class Pooling(nn.Module):
    """Base class of poolings. A subclass sets `width`, its output width, and defines `forward(x, mask)`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width


class FirstToken(Pooling):
    """The first token's vector: [CLS]."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x[:, 0]


class Pooler(Pooling):
    """The first token's vector after a dense layer and tanh, initialised from the encoder's pooler if it has one."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.dense = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return torch.tanh(self.dense(x[:, 0]))


class Mean(Pooling):
    """The mean of the token vectors."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        keep = mask.unsqueeze(-1).to(x.dtype)
        return (x * keep).sum(1) / keep.sum(1)


class Max(Pooling):
    """The maximum of each feature."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x.masked_fill(~mask.unsqueeze(-1), torch.finfo(x.dtype).min).amax(1)


class MeanMax(Pooling):
    """Mean and max, concatenated."""

    PARTS: tuple[type[Pooling], ...] = (Mean, Max)

    def __init__(self, width: int) -> None:
        super().__init__(len(self.PARTS) * width)
        self.parts = nn.ModuleList(part(width) for part in self.PARTS)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return torch.cat([part(x, mask) for part in self.parts], -1)


class FirstMeanMax(MeanMax):
    """First token, mean and max, concatenated."""

    PARTS = (FirstToken, Mean, Max)


class Attention(Pooling):
    """A mean weighted by softmax(w · x)."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.score = nn.Linear(width, 1, bias=False)  # a bias would cancel in the softmax

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        scores = self.score(x).squeeze(-1).float().masked_fill(~mask, float("-inf"))
        return torch.einsum("bt,btw->bw", scores.softmax(-1).to(x.dtype), x)


class Routing(Pooling):
    """Heinsen routing (arXiv 2211.11754) from any number of tokens to a few concatenated output vectors.

    Each token has an activation and votes for every output. In the first round the outputs are formed from all votes.
    In the second, each token's weight goes to the outputs that predict it best, and the outputs are formed again.
    The activation of padding is zero.
    """

    OUTPUTS = 4
    ROUNDS = 2

    def __init__(self, width: int) -> None:
        self_size = -(-width // self.OUTPUTS)
        super().__init__(self.OUTPUTS * self_size)
        spread = width**-0.5
        self.activation = nn.Linear(width, 1)
        self.vote_scale = nn.Parameter(torch.randn(self.OUTPUTS, width))
        self.vote = nn.Parameter(torch.randn(width, self_size) * 2 * spread)
        self.vote_bias = nn.Parameter(torch.zeros(self.OUTPUTS, self_size))
        self.predict = nn.Parameter(torch.randn(self_size, width) * self_size**-0.5)
        self.predict_scale = nn.Parameter(torch.randn(self.OUTPUTS, width))
        self.predict_bias = nn.Parameter(torch.zeros(self.OUTPUTS, width))
        self.match_scale = nn.Parameter(torch.randn(self.OUTPUTS) * spread)
        self.match_bias = nn.Parameter(torch.zeros(self.OUTPUTS))
        self.use, self.ignore = nn.Linear(width, self.OUTPUTS), nn.Linear(width, self.OUTPUTS)
        self.norm = nn.LayerNorm(self_size, elementwise_affine=False)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        keep = mask.unsqueeze(-1).to(x.dtype)
        scaled = x * keep.sum(1, keepdim=True).rsqrt()
        active = torch.sigmoid(self.activation(scaled)) * keep
        benefit, cost = self.use(x), self.ignore(x)
        shares = torch.full_like(benefit, 1 / self.OUTPUTS)
        outputs: Tensor | None = None
        for _ in range(self.ROUNDS):
            if outputs is not None:
                predicted = (outputs @ self.predict) * self.predict_scale + self.predict_bias
                match = torch.einsum("btw,bow->bto", x, predicted) * self.match_scale + self.match_bias
                shares = functional.logsigmoid(match).softmax(-1)
            gain = benefit * active * shares - cost * active * (1 - shares)
            gathered = torch.einsum("bto,btw->bow", gain, scaled) * self.vote_scale
            outputs = self.norm(gathered @ self.vote + gain.sum(1).unsqueeze(-1) * self.vote_bias)
        assert outputs is not None
        return outputs.flatten(1)


POOLINGS: dict[str, type[Pooling]] = {
    "cls": FirstToken,
    "pooler": Pooler,
    "mean": Mean,
    "max": Max,
    "mean_max": MeanMax,
    "cls_mean_max": FirstMeanMax,
    "attention": Attention,
    "routing": Routing,
}


class Comparison(nn.Module):
    """Base class of comparisons of two vectors u and v (batch, width); the output has `width` features.

    Args:
        width: Features of each vector.
        block: Features of one pooled layer; a vector consists of one or more such blocks.
    """

    def __init__(self, width: int, block: int) -> None:
        super().__init__()
        self.width = width
        self.feature_blocks = (block,) * (width // block)


class Difference(Comparison):
    """|u - v|."""

    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        return (u - v).abs()


class Similarity(Comparison):
    """One similarity, standardised with the mean and standard deviation of the first training batch.

    Without centring, the similarity would act as a bias at first. Its weight would take the sign of the larger class,
    and the encoder would learn to invert similarity.
    """

    center: Tensor
    spread: Tensor
    fitted: Tensor

    def __init__(self, width: int, block: int) -> None:
        super().__init__(1, 1)
        self.register_buffer("center", torch.zeros(()))
        self.register_buffer("spread", torch.ones(()))
        self.register_buffer("fitted", torch.tensor(False))

    def measure(self, u: Tensor, v: Tensor) -> Tensor:
        """Return the similarity of two vectors (batch,)."""
        raise NotImplementedError

    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        similarity = self.measure(u, v).float()
        if self.training and not self.fitted:
            self.center.copy_(similarity.detach().mean())
            self.spread.copy_(similarity.detach().std(correction=0).clamp(min=1e-3 + 0.05 * self.center.abs()))
            self.fitted.fill_(True)
        return (SIMILARITY_SCALE * (similarity - self.center) / self.spread).unsqueeze(-1)


class Dot(Similarity):
    """u · v."""

    def measure(self, u: Tensor, v: Tensor) -> Tensor:
        return (u * v).sum(-1)


class Concat(Comparison):
    """[u; v; |u - v|; u * v]."""

    def __init__(self, width: int, block: int) -> None:
        super().__init__(4 * width, block)

    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        return torch.cat([u, v, (u - v).abs(), u * v], -1)


class Combined(Comparison):
    """[|u - v|; u * v; cosine], with one cosine per block."""

    def __init__(self, width: int, block: int) -> None:
        super().__init__(2 * width, block)
        self.block, cosines = block, width // block
        self.width += cosines
        self.feature_blocks += (1,) * cosines

    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        cosine = functional.cosine_similarity(u.unflatten(-1, (-1, self.block)), v.unflatten(-1, (-1, self.block)), -1)
        return torch.cat([(u - v).abs(), u * v, cosine], -1)


class Cosine(Similarity):
    """The cosine of u and v."""

    def measure(self, u: Tensor, v: Tensor) -> Tensor:
        return functional.cosine_similarity(u, v)


COMPARISONS: dict[str, type[Comparison]] = {
    "difference": Difference,
    "dot": Dot,
    "concat": Concat,
    "cosine": Cosine,
    "combined": Combined,
}


class HeadModule(nn.Module):
    """The module of a head. `pool` returns one vector per text; `forward` returns logits of single texts or pairs.

    Args:
        head: The head as data.
        width: The encoder's hidden size.
        states: Number of hidden states of the encoder: its layers and the embeddings.
        outputs: Number of logits.

    Attributes:
        feature_blocks: Widths of the parts of the vector that is classified: pooled layers, or their comparisons.
        last_mean: The features that are the mean of the last layer, if all layers are read and texts are not compared.
    """

    def __init__(self, head: Head, width: int, states: int, outputs: int) -> None:
        super().__init__()
        self.concat = head.layers == "concat"
        self.take = states if isinstance(head.layers, str) else min(head.layers, states - 1)
        self.mix = LayerMix(states) if head.layers == "mix" else None
        self.convolution = Convolution(width, head.convolutions, head.dropout) if head.convolutions else None
        width = self.convolution.width if self.convolution else width
        self.blocks = EncoderBlocks(width, head.blocks, head.dropout) if head.blocks else None
        self.pooling = POOLINGS[head.pooling](width)
        block = self.pooling.width if self.pooling.width % width else width
        width = self.pooling.width * (states if self.concat else 1)
        self.compare = COMPARISONS[head.siamese](width, block) if head.siamese else None
        self.windows = POOLINGS[head.windows](width) if head.windows else None
        self.feature_blocks = self.compare.feature_blocks if self.compare else (block,) * (width // block)
        self.last_mean = None
        if self.concat and head.pooling == "cls_mean_max" and not head.siamese:
            self.last_mean = slice(width - 2 * block, width - block)
        width = self.compare.width if self.compare else width
        self.dropout = nn.Dropout(head.dropout)
        widths = [width, *([head.mlp.width] * head.mlp.layers if head.mlp else [])]
        hidden = [(nn.Linear(a, b), nn.GELU(), nn.Dropout(head.dropout)) for a, b in pairwise(widths)]
        self.mlp = nn.Sequential(*(module for layer in hidden for module in layer))
        width = widths[-1]
        self.output = nn.Linear(width, outputs)
        # A single similarity starts with a weight near zero: data, not chance, must decide its sign.
        nn.init.normal_(self.output.weight, std=1e-3 if width == 1 else 0.02)
        nn.init.zeros_(self.output.bias)

    @property
    def several_layers(self) -> bool:
        """True if the head reads more than the encoder's last layer."""
        return self.take != 1

    def pool(self, states: tuple[Tensor, ...], mask: Tensor) -> Tensor:
        """Return one vector per text from the encoder's hidden states (only the last one unless `several_layers`)."""
        if self.concat:
            return torch.cat([self.pooling(state, mask) for state in states], -1)
        if self.mix is not None:
            x = self.mix(states)
        else:
            x = states[-1] if self.take == 1 else torch.stack(states[-self.take :]).mean(0)
        if self.convolution is not None:
            x = self.convolution(x, mask)
        if self.blocks is not None:
            x = self.blocks(x, mask)
        return self.pooling(x, mask)

    def forward(self, states: tuple[Tensor, ...], mask: Tensor, read: Tensor | None = None) -> Tensor:
        """Return logits.

        Args:
            states: Hidden states of the encoder. For a siamese head, first texts are the first half of the batch,
                second texts the other. The windows of a text follow each other.
            mask: True for real tokens (batch, tokens).
            read: For texts in windows, true for windows that are part of a text (texts, windows).
        """
        pooled = self.pool(states, mask)
        if self.windows is not None and read is not None:
            pooled = self.windows(pooled.unflatten(0, (-1, read.shape[1])), read)
        if self.compare is not None:
            pooled = self.compare(*pooled.unflatten(0, (2, -1)))
        features = self.mlp(self.dropout(pooled))
        if not torch.is_autocast_enabled(features.device.type):
            return self.output(features)
        # A solved output layer adds large terms that nearly cancel: 16 bits are not enough for them.
        with torch.autocast(features.device.type, enabled=False):
            return self.output(features.float())
