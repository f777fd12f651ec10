"""The page to try a model, in a real browser."""

from __future__ import annotations

import pytest
from serving import PROBLEM_TYPES, exports_fixture, start_service_fixture  # noqa: F401

pytest.importorskip("fastapi")
pytestmark = pytest.mark.xdist_group("serve")


def text_of(browser, selector: str) -> str:
    """Wait until an element has text, and return it."""
    return browser.run(
        f"new Promise(done => setTimeout(function wait() {{ const element = document.querySelector('{selector}');"
        "element && element.textContent ? done(element.textContent) : setTimeout(wait, 20) }, 0))"
    )


@pytest.mark.parametrize("problem_type", PROBLEM_TYPES)
def test_page_displays_the_prediction_of_the_model(exports, start_service, browser, problem_type):
    service = start_service(exports(problem_type))
    address = f"http://127.0.0.1:{service.port}/"
    browser.open(address, 1000, False)
    assert browser.run("document.getElementById('text').placeholder") == "a text", "an example for any classes"
    texts = {"text": "a good film", **({"text_b": "</script>"} if problem_type == "pair" else {})}
    for name, text in texts.items():
        browser.click(f"#{name}")
        browser.type(text)
    browser.click("#predict")
    prediction = service.request(body=texts)[2]
    label = text_of(browser, "#prediction .label")
    if problem_type == "regression":
        assert float(label) == pytest.approx(prediction["label"], rel=1e-5)
    else:
        several = problem_type == "multi_label_classification"
        assert label == (", ".join(prediction["label"]) or "none of the labels" if several else prediction["label"])
        bars = browser.run("[...document.querySelectorAll('.bar')].map(bar => bar.innerText.split('\\n'))")
        ordered = sorted(prediction["probabilities"].items(), key=lambda item: -item[1])
        assert [bar[0] for bar in bars] == [name for name, _ in ordered]
        assert [bar[-1] for bar in bars] == [f"{100 * share:.1f} %" for _, share in ordered]
    assert browser.run("document.documentElement.scrollWidth") <= 1000
    assert browser.trouble(own=address) == []
    browser.run("document.querySelector('#text').value = 'x'.repeat(30000)")
    browser.click("#predict")
    assert text_of(browser, "#prediction .error") == "A text must have at most 20000 characters; found 30000."


def test_page_sends_the_token(exports, start_service, browser):
    service = start_service(exports(), HEADHUNT_TOKEN="secret")
    browser.open(f"http://127.0.0.1:{service.port}/docs", 400, True)  # redirects to the page
    browser.click("#token")
    browser.type("secret")
    browser.click("#predict")
    assert text_of(browser, "#prediction").startswith(("good", "bad"))
    assert "secret" not in browser.run("document.querySelector('#curl').textContent")
    assert browser.run("document.documentElement.scrollWidth") <= 400
