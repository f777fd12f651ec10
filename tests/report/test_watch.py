"""The live page of `headhunt watch`: a real server on loopback, and a real browser that follows a search."""

from __future__ import annotations

import re
import shutil
import socket
import threading
import time
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest
from report_runs import keep_events, make_run

from headhunt.errors import HeadhuntError
from headhunt.report.watch import watch
from headhunt.run.schema import RunError


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("watch") / "whole", 24)


@pytest.fixture
def page(tmp_path, whole):
    """Return the beginning of a run, and the address of its live page."""
    shutil.copytree(whole, tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    keep_events(tmp_path / "run", 12)
    addresses: list[str] = []
    threading.Thread(target=watch, args=[tmp_path / "run"], kwargs={"notify": addresses.append}, daemon=True).start()
    deadline = time.monotonic() + 30
    while not addresses:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return tmp_path / "run", addresses[0]


def get(address: str, **changes: str) -> tuple[int, dict[str, str], str]:
    parts = urlsplit(address)._replace(**changes)
    connection = HTTPConnection(parts.netloc, timeout=30)
    connection.request("GET", f"{parts.path}?{parts.query}")
    answer = connection.getresponse()
    return answer.status, {name.lower(): value for name, value in answer.headers.items()}, answer.read().decode()


def test_page_needs_its_token_and_is_for_this_machine_alone(page):
    folder, address = page
    status, headers, text = get(address)
    assert status == 200 and "<svg" in text and "not finished" in text
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1]
    assert policy.startswith("default-src 'none'") and policy.endswith("connect-src 'self'")
    assert headers["content-security-policy"] == "frame-ancestors 'none'" and headers["cache-control"] == "no-store"
    assert headers["referrer-policy"] == "no-referrer"
    for query in ("", "token=", "token=wrong", "token=é"):
        status, _, text = get(address, query=query.encode("ascii", "ignore").decode())
        assert status == 403 and "<svg" not in text
    port = urlsplit(address).port
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", port), timeout=5).close()  # another address of this machine
    with pytest.raises(HeadhuntError, match=f"port= must be free; {port} is not"):
        watch(folder, port=port)
    shutil.rmtree(folder)
    assert get(address)[0] == 503, "the run was removed"
    with pytest.raises(RunError, match="does not exist"):
        watch(folder)


def test_open_page_follows_the_search_and_keeps_what_the_reader_did(page, browser, whole):
    folder, address = page

    def wait_for(script: str) -> None:
        deadline = time.monotonic() + 60
        while not browser.run(script):
            assert time.monotonic() < deadline, script
            time.sleep(0.1)

    browser.open(address, 1280, dark=False)
    wait_for("document.getElementById('live').textContent === 'live'")
    browser.run("document.querySelector('#repeat').dataset.mark = 'old'")
    browser.click("#filter")
    browser.type("trial")
    browser.click("#trials th button")
    before = browser.run("document.querySelectorAll('#trials tbody tr').length")
    for name in ("ledger.jsonl", "result.json"):
        shutil.copy(whole / name, folder / name)
    wait_for("document.querySelector('h1').textContent.startsWith('A reliable gain')")
    assert browser.run("document.querySelectorAll('#trials tbody tr').length") > before
    assert browser.run("document.getElementById('filter').value") == "trial"
    assert browser.run("document.querySelector('#trials th').getAttribute('aria-sort')") == "ascending"
    assert browser.run("document.getElementById('confusion') !== null"), "a section that was not there before"
    assert browser.trouble(own=address.split("?")[0]) == []
