"""Accessibility of every page, in every state, by axe-core, where that is there.

SOTTOVOCE_AXE names its axe.min.js (`npm install axe-core`, anywhere).
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.browser_captions import share, tell
from tests.server.browser_page import ALL, browser, state
from tests.server.browser_page import pytestmark as on_chromium
from tests.server.conversation import utterance
from tests.server.servers import ServerThread
from tests.server.test_page import AXE

pytestmark = [
    *on_chromium,
    pytest.mark.skipif(not AXE.is_file(), reason="no axe-core: SOTTOVOCE_AXE names its axe.min.js"),
]
SCHEMES = ("light", "dark")
LATE = """
document.getElementById("late-by").textContent = "Captions are 12 s late.";
document.getElementById("late").hidden = false;
"""


def findings(page: Any) -> list[str]:
    """What axe-core finds wrong on a page as it stands, in both schemes."""
    actual: set[str] = set()
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        page.wait_for_timeout(400)
        if not page.evaluate("'axe' in window"):
            page.evaluate(AXE.read_text(encoding="utf-8"))
        result = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
        assert len(result["passes"]) > 5
        actual |= {
            f"{scheme} {item['id']}: {node['html'][:150]} {node['failureSummary'][:200]}"
            for item in result["violations"]
            for node in item["nodes"]
        }
    return sorted(actual)


def test_the_page_in_all_its_states(server: ServerThread) -> None:
    with browser(server.url + ALL) as page:
        assert findings(page) == []
        page.click("#test")
        page.wait_for_selector("#test-text:not(:empty)")
        assert findings(page) == []
        page.evaluate(LATE)
        assert findings(page) == []
        page.click("#toggle")
        page.wait_for_selector("#log .utterance:nth-child(2)")
        assert findings(page) == []
        page.wait_for_selector("#log .utterance:nth-child(4)")
        page.click("#toggle")
        state(page, "ended")
        page.click("#settings-open")
        page.click("#find")
        page.fill("#find-text", "the")
        assert findings(page) == []
        page.locator("#log .edit").first.click()
        assert findings(page) == []
        page.keyboard.press("Escape")
        page.click("#save")
        assert findings(page) == []
        page.keyboard.press("Escape")
        page.evaluate("document.getElementById('speaker').showPopover()")
        assert findings(page) == []
        page.keyboard.press("Escape")
        page.click("#saved-open")
        page.click("#keep-now")
        page.wait_for_selector("#saved-list li")
        assert findings(page) == []
        page.keyboard.press("Escape")
        share(page)
        page.click("#share-open")
        assert findings(page) == []


def test_the_pages_of_readers(server: ServerThread) -> None:
    said = [
        utterance(
            0, "Good evening", "en", translation={"text": "Guten Abend", "language": "de"}, speaker="A"
        ),
        utterance(1, "Wie geht es", "de", unstable={"text": " Ihnen", "language": "de"}, speaker="B"),
    ]
    for path in ("/read", "/captions?speakers=true", "/captions?box=none&background=000"):
        with browser(f"{server.url}/read") as page:
            view = page.context.new_page()
            view.goto(f"{server.url}{path}")
            tell(page, clear=True, utterances=said[:1], now=said[1], names={"A": "Anna"})
            view.wait_for_selector(".unstable", state="attached")
            if "captions" in path:
                view.focus("#full")
            assert findings(view) == []
