"""With keys each page shows what its caller may know: another's task is as if there were none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adaptree.serve.keys import COOKIE
from tests.serve.serving import Answer, Asker
from tests.serve.web.conftest import Open, Site, expect

pytestmark = pytest.mark.slow  # a browser for every test

HTML = {"Accept": "text/html"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
OTHERS = ("other/secret", "other/reviews", "choose", "tfidf")


def ask(site: Site, key: str, method: str, path: str, body: Any = None, **headers: str) -> Answer:
    cookie = {"Cookie": f"{COOKIE}={site.keys[key]}"} if key else {}
    return Asker(site.url)(method, path, body, headers={**HTML, **cookie, **headers})


@pytest.mark.parametrize("path", ["/", "/?q=secret", "/?q=reviews", "/methods", "/compose", "/all", "/task/reviews"])
def test_a_tenants_pages_have_nothing_of_others(keyed_site: Site, path: str) -> None:
    found = ask(keyed_site, "acme", "GET", path)
    assert found.status == 200
    body = found.body.decode()
    assert not [name for name in OTHERS if f">{name}<" in body or f'"{name}"' in body or f"&#34;{name}" in body]


def test_a_tenant_may_leave_out_its_name(keyed_site: Site) -> None:
    assert "acme/reviews" in ask(keyed_site, "acme", "GET", "/task/reviews").body.decode()
    assert "acme/reviews" in ask(keyed_site, "acme", "GET", "/task/acme/reviews").body.decode()


@pytest.mark.parametrize("start", ["/task/", "/use/"])
def test_anothers_task_is_as_if_it_did_not_exist(keyed_site: Site, start: str) -> None:
    theirs, nobody = (ask(keyed_site, "acme", "GET", f"{start}{name}") for name in ("other/secret", "other/nothing"))
    assert theirs.status == nobody.status == 404
    assert theirs.body.replace(b"secret", b"nothing") == nobody.body


def test_what_is_computed_for_a_tenant_is_of_its_own_tasks(keyed_site: Site) -> None:
    for path, body, form in (
        ("/words/other/secret", json.dumps({"inputs": ["a"]}).encode(), "application/json"),
        ("/evaluate/other/secret?name=a.csv", b"text,label\na,b\n", "text/plain"),
        ("/rollback", b"task=other/secret@1", FORM["Content-Type"]),
        ("/compose", b"expression=stack(reviews,other/secret)&name=mine", FORM["Content-Type"]),
    ):
        found = ask(keyed_site, "acme-admin", "POST", path, body, **{"Content-Type": form})
        assert found.status == 404, path
    assert keyed_site.world.store.versions("other/secret") == [1]
    shown = ask(keyed_site, "acme", "GET", "/compose?expression=stack(reviews,other/secret)").body.decode()
    assert "no task &#39;other/secret&#39;" in shown


def test_one_text_goes_through_a_tenants_own_tasks(keyed_site: Site) -> None:
    found = ask(
        keyed_site,
        "acme",
        "POST",
        "/all",
        json.dumps({"text": "lion"}).encode(),
        **{"Content-Type": "application/json"},
    )
    lines = [json.loads(line) for line in found.body.splitlines()]
    assert {line["task"] for line in lines if "task" in line} == {"acme/reviews", "acme/tickets"}


def test_what_a_key_is_not_for_is_refused_and_not_offered(keyed_site: Site) -> None:
    body = ask(keyed_site, "acme", "GET", "/").body.decode()
    assert 'href="/server"' not in body
    for key in ("acme", "trainer", "acme-admin"):
        assert ask(keyed_site, key, "GET", "/server").status == 403
        assert ask(keyed_site, key, "GET", "/server/figures").status == 403
        assert ask(keyed_site, key, "POST", "/server/keys", b"admin=1", **FORM).status == 403
    assert ask(keyed_site, "acme", "POST", "/rollback", b"task=reviews@1", **FORM).status == 403
    assert (
        ask(keyed_site, "acme", "POST", "/compose", b"expression=stack(reviews,tickets)&name=x", **FORM).status == 403
    )


@pytest.mark.parametrize("path", ["/", "/task/reviews", "/all", "/methods", "/compose", "/server", "/use/reviews"])
def test_without_a_key_every_page_leads_to_the_sign_in(keyed_site: Site, path: str) -> None:
    found = ask(keyed_site, "", "GET", path)
    assert found.status == 303
    assert found.headers["location"].startswith("/sign-in")


@pytest.mark.parametrize(
    "path",
    ["/words/reviews", "/evaluate/reviews", "/held-out/reviews", "/rollback", "/all", "/compose", "/server/keys"],
)
def test_without_a_key_nothing_is_done(keyed_site: Site, path: str) -> None:
    assert ask(keyed_site, "", "POST", path, b"{}", **{"Content-Type": "application/json"}).status == 401


@pytest.mark.parametrize(
    "path", ["/rollback", "/compose", "/server/keys", "/server/keys/remove", "/all", "/words/words"]
)
def test_another_sites_page_cannot_use_a_signed_in_browser(keyed_site: Site, path: str) -> None:
    """Even where the browser would send the cookie."""
    before = keyed_site.server.app.state.service.keys.path.read_text()
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}):
        found = ask(keyed_site, "admin", "POST", path, b"predict=1", **FORM, **headers)
        assert (found.status, json.loads(found.body)["error"]["code"]) == (403, "cross_site")
    assert keyed_site.server.app.state.service.keys.path.read_text() == before


def test_a_form_of_another_site_is_refused_without_keys_too(own_site: Site) -> None:
    found = Asker(own_site.url).post("/rollback", b"task=words@1", headers={**FORM, "Origin": "https://evil.example"})
    assert (found.status, found.error["code"]) == (403, "cross_site")


def test_a_tenant_composes_under_its_own_name(own_keyed_site: Site, open_page: Open) -> None:
    page = open_page(own_keyed_site, "/compose?expression=average(reviews,tickets)", key="trainer")
    page.get_by_label("Keep it as a task named").fill("both")
    page.get_by_role("button", name="Keep", exact=True).click()
    expect(page.locator("h1")).to_have_text("acme/both@1")
    assert own_keyed_site.world.store.versions("acme/both") == [1]
