// What all pages of the app share: "/" goes to the search, and helpers that other modules import.

export const byId = (id) => document.getElementById(id);

// An element with a class and children; texts are never read as HTML.
export const element = (tag, kind = "", ...children) => {
  const made = document.createElement(tag);
  if (kind) made.className = kind;
  made.append(...children);
  return made;
};

// Says something to those who listen.
export const say = (text) => { byId("live").textContent = text; };

// Calls `run` once nothing has happened for some milliseconds.
export const debounced = (run, milliseconds) => {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => run(...given), milliseconds);
  };
};

// Like fetch, for JSON: throws an Error whose message is the server's own, with its hint.
export const ask = async (address, options = {}) => {
  const { json, ...rest } = options;
  const headers = { Accept: "application/json", ...rest.headers };
  if (json !== undefined) headers["Content-Type"] = "application/json";
  const body = json === undefined ? rest.body : JSON.stringify(json);
  const answer = await fetch(address, { ...rest, headers, body, method: rest.method ?? (body === undefined ? "GET" : "POST") });
  if (answer.status === 401) location.reload(); // the key is no longer valid: the page leads to the sign-in
  const found = await answer.json().catch(() => ({}));
  if (!answer.ok) throw problem(found.error, answer.status);
  return found;
};

export const problem = (error, status = 0) => {
  const text = error ? [error.message, error.hint].filter(Boolean).join(" ") : `The server answered ${status}.`;
  return Object.assign(new Error(text), { status, code: error?.code ?? "" });
};

// A task's name within an address.
export const inAddress = (name) => encodeURIComponent(name).replaceAll("%2F", "/").replaceAll("%40", "@");

addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, select, textarea, [contenteditable]");
  const search = document.querySelector('[aria-keyshortcuts="/"]');
  if (event.key === "/" && search && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    search.focus();
  }
});

// Forms that ask before they do something: <form data-confirm="Really?">
addEventListener("submit", (event) => {
  const question = event.target.dataset.confirm;
  if (question && !confirm(question)) event.preventDefault();
});

// Blocks of which one is shown at a time: <div data-tabs> with sections that have a heading.
export const tabs = (box) => {
  const sections = [...box.querySelectorAll(":scope > .tab")];
  const list = element("div", "tab-list");
  list.setAttribute("role", "tablist");
  const buttons = sections.map((section, i) => {
    const heading = section.querySelector("h3");
    const button = element("button", "", heading.textContent);
    button.type = "button";
    button.setAttribute("role", "tab");
    button.id = `tab-${Math.random().toString(36).slice(2)}`;
    heading.remove();
    section.setAttribute("role", "tabpanel");
    section.removeAttribute("aria-label");
    section.setAttribute("aria-labelledby", button.id);
    button.addEventListener("click", () => choose(i));
    return button;
  });
  const choose = (i, focus = false) => {
    sections.forEach((section, j) => { section.hidden = i !== j; });
    buttons.forEach((button, j) => {
      button.setAttribute("aria-selected", String(i === j));
      button.tabIndex = i === j ? 0 : -1;
    });
    if (focus) buttons[i].focus();
  };
  list.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (by) choose((buttons.indexOf(document.activeElement) + by + buttons.length) % buttons.length, true);
  });
  list.append(...buttons);
  box.prepend(list);
  choose(0);
};
document.querySelectorAll("[data-tabs]").forEach(tabs);

// Times in the reader's own zone: <time data-time="seconds since 1970">
document.querySelectorAll("time[data-time]").forEach((each) => {
  const when = new Date(1000 * each.dataset.time);
  each.dateTime = when.toISOString();
  each.textContent = when.toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
});
