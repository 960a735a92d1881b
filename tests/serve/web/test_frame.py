"""What all pages share: sign-in and cookies, the policy, errors as pages, static files, and nothing from elsewhere."""

from __future__ import annotations

import re

import pytest

from adaptree.serve.keys import COOKIE
from adaptree.serve.web import static
from adaptree.serve.web.sign_in import local
from tests.serve.serving import Asker
from tests.serve.web.conftest import Open, Site, expect, faults, sideways

HTML = {"Accept": "text/html"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def test_the_policy_allows_only_our_own_files(site: Site) -> None:
    found = Asker(site.url).get("/", headers=HTML)
    policy = found.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert found.headers["x-content-type-options"] == "nosniff"
    body = found.body.decode()
    assert not re.search(r"<script(?![^>]*\bsrc=)", body)
    assert not re.search(r"\s(style|on\w+)=", body)


def test_static_files_stay_in_the_cache_until_they_change(site: Site) -> None:
    ask = Asker(site.url)
    found = ask.get(static.address("app.css"))
    assert (found.status, found.headers["content-type"]) == (200, "text/css; charset=utf-8")
    assert "immutable" in found.headers["cache-control"]
    assert ask.get("/static/0123/app.css").headers["cache-control"] == "no-cache"
    assert ask.get("/static/x/..%2fframe.py").status == 404
    assert ask.get("/static/x/frame.py").status == 404


def test_errors_are_pages_for_a_browser_and_json_for_programs(site: Site) -> None:
    ask = Asker(site.url)
    page = ask.get("/nothing", headers=HTML)
    assert (page.status, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "There is nothing here." in page.body.decode()
    assert ask.get("/nothing").error["code"] == "no_such_route"
    assert ask.get("/v1/tasks/nothing", headers=HTML).error["code"] == "task_not_found"
    assert ask("DELETE", "/sign-in").headers["allow"] == "GET, POST"


# Keys


def test_a_key_becomes_a_cookie_that_scripts_cannot_read(keyed_site: Site, open_page: Open) -> None:
    page = open_page(keyed_site, "/?sort=score", expected=("401",))
    expect(page).to_have_url(f"{keyed_site.url}/sign-in?next=%2F%3Fsort%3Dscore")
    page.get_by_label("API key").fill("at_wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_have_text("this API key is not valid.")
    page.get_by_label("API key").fill(keyed_site.keys["acme"])
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{keyed_site.url}/?sort=score")
    cookie = next(each for each in page.context.cookies() if each["name"] == COOKIE)
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/")
    assert page.evaluate("document.cookie") == ""
    assert page.evaluate("fetch('/v1/tasks').then((r) => r.status)") == 200
    page.get_by_role("button", name="Sign out").click()
    expect(page).to_have_url(f"{keyed_site.url}/sign-in")
    page.goto(keyed_site.url)
    expect(page).to_have_url(f"{keyed_site.url}/sign-in")


def test_a_key_that_was_taken_back_leads_to_the_sign_in(keyed_site: Site) -> None:
    ask = Asker(keyed_site.url)
    found = ask.get("/", headers={**HTML, "Cookie": f"{COOKIE}=at_{'0' * 12}_{'x' * 43}"})
    assert (found.status, found.headers["location"]) == (303, "/sign-in")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "same-origin"}, 303),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}, 403),
        ({}, 303),
    ],
)
def test_what_another_sites_page_sends_is_refused(keyed_site: Site, headers: dict[str, str], status: int) -> None:
    ask = Asker(keyed_site.url)
    cookie = {"Cookie": f"{COOKIE}={keyed_site.keys['admin']}"}
    assert ask.post("/sign-out", b"", headers={**FORM, **cookie, **headers}).status == status


def test_our_own_origin_may_send(keyed_site: Site) -> None:
    headers = {**FORM, "Origin": keyed_site.url, "Cookie": f"{COOKIE}={keyed_site.keys['admin']}"}
    assert Asker(keyed_site.url).post("/sign-out", b"", headers=headers).status == 303


def test_a_program_with_a_key_in_its_header_may_run_in_any_page(keyed_site: Site) -> None:
    ask = Asker(keyed_site.url, keyed_site.keys["acme"])
    answer = ask.post("/v1/tasks/reviews/predict", {"inputs": ["a"]}, headers={"Origin": "http://elsewhere.example"})
    assert answer.status == 200


@pytest.mark.parametrize(
    ("address", "found"),
    [("/task/a?b=c", "/task/a?b=c"), ("//evil.example", "/"), ("/\\evil.example", "/"), ("https://evil.example", "/"),
     ("", "/"), ("/\n/evil", "/"), ("/" + "a" * 3000, "/")],
)  # fmt: skip
def test_a_sign_in_leads_nowhere_else(address: str, found: str) -> None:
    assert local(address) == found


def test_sign_in_and_errors_are_accessible_and_fit_a_phone(keyed_site: Site, open_page: Open) -> None:
    for scheme in ("light", "dark"):
        page = open_page(
            keyed_site, "/sign-in", viewport={"width": 390, "height": 844}, color_scheme=scheme, expected=("404",)
        )
        assert faults(page) == []
        assert sideways(page) == 0
        page.goto(f"{keyed_site.url}/nothing")
        assert faults(page) == []
