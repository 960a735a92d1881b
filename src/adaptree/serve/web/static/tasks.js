// The list answers as one types: the same page is asked for with the new address, and its list taken over.
import { byId, debounced, inAddress, tabs } from "./app.js";

const form = byId("filters");
let newest = 0;

const show = async (address, { push = false } = {}) => {
  const turn = ++newest;
  const answer = await fetch(address, { headers: { Accept: "text/html" } });
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  if (turn !== newest) return; // a later one was asked meanwhile
  const found = page.getElementById("found");
  if (!found) return location.assign(address);
  byId("found").replaceWith(document.adoptNode(found));
  history[push ? "pushState" : "replaceState"](null, "", address);
};

const address = () => {
  const said = [...new FormData(form)].filter(([, value]) => value);
  return said.length ? `/?${new URLSearchParams(said)}` : "/";
};

const read = () => {
  const said = new URLSearchParams(location.search);
  for (const input of form.querySelectorAll("input, select")) input.value = said.get(input.name) ?? "";
};

if (form) {
  form.addEventListener("input", debounced(() => show(address()), 120));
  form.addEventListener("submit", (event) => { event.preventDefault(); show(address()); });
  byId("clear").addEventListener("click", (event) => {
    event.preventDefault();
    form.querySelectorAll("input, select").forEach((input) => { input.value = ""; });
    show("/");
  });
  addEventListener("popstate", () => { read(); show(location.pathname + location.search); });
  document.addEventListener("click", async (event) => {
    const turn = event.target.closest(".pager a");
    if (turn && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
      event.preventDefault();
      await show(turn.getAttribute("href"), { push: true });
      document.querySelector(".results").focus();
      scrollTo(0, 0);
    }
  });

  // What to type, in a dialog; a page without scripts has it on the task's own page.
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("a.use");
    if (!button || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const answer = await fetch(`/use/${inAddress(button.dataset.task)}`, { headers: { Accept: "text/html" } });
    if (!answer.ok) return location.assign(button.href);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const dialog = byId("use");
    dialog.replaceChildren(...page.body.childNodes);
    dialog.querySelectorAll("[data-tabs]").forEach(tabs);
    window.prepare(dialog);
    dialog.showModal();
  });
}
