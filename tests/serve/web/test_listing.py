"""The list of tasks: search, filters, sorting, pages; quick with thousands."""

from __future__ import annotations

from typing import Any

import pytest

from tests.serve.web.conftest import Open, Site, expect, faults, sideways

pytestmark = pytest.mark.slow  # a browser for every test


def shown(page: Any) -> list[str]:
    return [text.split("@")[0].strip() for text in page.locator(".results h2").all_inner_texts()]


def test_search_and_filters_answer_as_one_types(site: Site, open_page: Open) -> None:
    page = open_page(site)
    everything = shown(page)
    assert everything == sorted(site.world.store.names())
    page.keyboard.press("/")
    page.keyboard.type("reviews")
    expect(page.locator("#count")).to_have_text(f"2 of {len(everything)} tasks")
    assert shown(page) == ["acme/reviews", "other/reviews"]
    expect(page).to_have_url(f"{site.url}/?q=reviews")
    page.get_by_role("link", name="Clear").click()
    expect(page.locator("#count")).to_have_text(f"{len(everything)} tasks")
    page.get_by_label("Kind").select_option("tag")
    expect(page.locator("#count")).to_have_text(f"1 of {len(everything)} tasks")
    assert shown(page) == ["tags"]
    page.reload()
    assert shown(page) == ["tags"]
    assert page.get_by_label("Kind").input_value() == "tag"
    page.get_by_role("searchbox").fill("nothing of this")
    expect(page.locator("#count")).to_have_text("No task matches.")


def test_the_list_is_accessible_and_fits_a_phone(site: Site, open_page: Open) -> None:
    for scheme in ("light", "dark"):
        page = open_page(site, viewport={"width": 390, "height": 844}, color_scheme=scheme)
        assert faults(page) == []
        assert sideways(page) == 0
