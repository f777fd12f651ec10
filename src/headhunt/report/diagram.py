"""Drawing of a candidate's architecture, from tokens to output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headhunt.report.svg import coordinate, draw_box, draw_circle, draw_svg, draw_text, shorten, wrap

WIDTH = 360  # CSS pixels
GAP = 26  # between two boxes
HATCH = (
    '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<path class="hatch" d="M0 0V6"/></pattern></defs>'
)


def draw_diagram(stages: Sequence[Mapping[str, Any]], width: float = WIDTH) -> str:
    """Return a drawing of the stages from top to bottom; frozen layers are hatched.

    Args:
        stages: As `headhunt.spec.stages` returns them.
        width: CSS pixels.
    """
    middle = width / 2
    body, y = [HATCH], 1.0
    previous: list[float] = []  # centres of the boxes above
    for stage in stages:
        twice = stage.get("twice", False)
        box_width = (width - 24) / 2 if twice else min(width - 40, 300)
        centres = [box_width / 2 + 1, width - box_width / 2 - 1] if twice else [middle]
        for start in centres if twice or len(previous) < 2 else previous:
            if previous:
                end = middle if not twice and len(previous) > 1 else start
                body.append(_arrow(start, y - GAP, end, y))
        titles = stage.get("titles") or [stage["title"]]
        height = 0.0
        for place, centre in enumerate(centres):
            box, height = _box(stage, titles[min(place, len(titles) - 1)], centre, y, box_width)
            body.append(box)
        if twice and stage["stage"] == "encoder":
            body.append(draw_text(middle, y + height + 17, "the same weights", "tick", "middle"))
        previous = centres
        y += height + GAP
    described = " → ".join(
        f"{' and '.join(stage.get('titles') or [stage['title']])} ({stage['detail']})" for stage in stages
    )
    return draw_svg(width, y - GAP + 2, f"Architecture: {described}.", body, "diagram")


def _box(stage: Mapping[str, Any], title: str, centre: float, y: float, width: float) -> tuple[str, float]:
    """Return one box and its height."""
    x, title_length = centre - width / 2, int((width - 20) / 6.3)
    detail = wrap(str(stage["detail"]), int((width - 20) / 5.9))
    is_encoder = stage["stage"] == "encoder"
    count = min(stage["layers"] or 6, 24) if is_encoder else 0
    bar = 8 if count > 12 else 11
    inner = (count + 1) * bar + 8 if is_encoder else 0
    height = 34 + 15 * len(detail) + inner
    kind = {"tokens": "box plain", "output": "box accent"}.get(stage["stage"], "box")
    parts = [
        draw_box(x, y, width, height, kind, 'rx="8"'),
        draw_text(centre, y + 22, shorten(title, title_length), "title", "middle"),
        *(draw_text(centre, y + 40 + 15 * line, text, "detail", "middle") for line, text in enumerate(detail)),
    ]
    if is_encoder:
        parts.append(_layer_bars(stage, count, bar, x + 16, y + 36 + 15 * len(detail) - 4, width - 32))
    return "".join(parts), height


def _layer_bars(stage: Mapping[str, Any], count: int, bar: int, x: float, y: float, width: float) -> str:
    """Return the embeddings and layers of the encoder, with a dot beside each layer that the head reads."""
    frozen_layers = count if stage["all_frozen"] else min(count, int(stage["frozen"] or 0))
    read_layers = count if isinstance(stage["taken"], str) else min(count, stage["taken"])
    parts = []
    for place in range(count + 1):
        frozen = stage["embeddings_frozen"] if place == 0 else place <= frozen_layers
        inset = 12 if place == 0 else 0
        kind = "frozen" if frozen else "trained"
        name = "embeddings" if place == 0 else f"layer {place}"
        top, length = y + bar * place, width - 2 * inset
        parts.append(draw_box(x + inset, top, length, bar - 3, f"layer {kind}", 'rx="2"', f"{name}, {kind}"))
        if place > count - read_layers:
            parts.append(draw_circle(x + width + 7, top + (bar - 3) / 2, 3, "dot accent bare"))
    return "".join(parts)


def _arrow(x: float, y: float, end: float, to: float) -> str:
    points = [(end - 4, to - 7), (end, to - 2), (end + 4, to - 7)]
    tip = "M" + "L".join(f"{coordinate(at)} {coordinate(level)}" for at, level in points)
    stem = f"V{coordinate(to - 3)}"
    if x != end:
        curve = (x, to - 8, end, y + 6, end, to - 3)
        stem = "C" + " ".join(map(coordinate, curve))
    return f'<path class="arrow" d="M{coordinate(x)} {coordinate(y + 3)}{stem}{tip}"/>'
