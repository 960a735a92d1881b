// The list of tasks: searched as one types, filtered, sorted and paged. The address keeps the view, so that it can be
// shared. Only the tasks of the page that is shown have elements, and texts are never read as HTML.
"use strict";

(() => {
  const PAGE = 50;
  const MOST_LABELS = 8;
  const CHOICES = ["kind", "base", "method", "language"];
  const SUGGESTED = 200;
  const byId = (id) => document.getElementById(id);
  const inputs = Object.fromEntries(["words", "label", "sort", ...CHOICES].map((id) => [id, byId(id)]));
  const names = new Intl.Collator("en", { numeric: true });

  const { columns, rows } = window.tasks;
  const tasks = rows.map((row) => {
    const task = Object.fromEntries(columns.map((column, i) => [column, row[i]]));
    for (const list of ["labels", "languages", "tags"]) task[list] ??= [];
    const texts = [task.name, task.kind, task.method, task.base, task.data, task.metric, task.problem && "damaged"];
    task.text = [...texts, ...task.labels, ...task.languages, ...task.tags].filter(Boolean).join("\n").toLowerCase();
    return task;
  });
  let page = 1;

  // What a task has for a filter.
  const values = (task, choice) => (choice === "language" ? task.languages : task[choice] ? [task[choice]] : []);

  const counted = (lists) => {
    const counts = new Map();
    for (const list of lists) for (const value of list) counts.set(value, (counts.get(value) || 0) + 1);
    return [...counts];
  };

  const fillChoices = () => {
    for (const choice of CHOICES) {
      const found = counted(tasks.map((task) => values(task, choice))).sort((a, b) => names.compare(a[0], b[0]));
      const option = ([value, count]) => new Option(`${value} (${count.toLocaleString("en")})`, value);
      inputs[choice].append(...found.map(option));
      inputs[choice].parentElement.hidden = found.length === 0;
    }
    const labels = counted(tasks.map((task) => task.labels)).sort((a, b) => b[1] - a[1]).slice(0, SUGGESTED);
    byId("labels").append(...labels.map(([label]) => new Option(label)));
  };

  // Orders. Scores of unlike metrics cannot be compared: where less is better they come after the others, then none.
  const rank = (task) => (typeof task.score !== "number" ? 2 : task.lower ? 1 : 0);
  const byScore = (a, b) => rank(a) - rank(b) || (rank(a) === 2 ? 0 : a.lower ? a.score - b.score : b.score - a.score);
  const least = (key) => (a, b) => (a[key] ?? Infinity) - (b[key] ?? Infinity) || 0;
  const earliest = (a, b) => names.compare(a.created || "9", b.created || "9");
  const ORDERS = {
    name: () => 0,
    score: byScore,
    price: least("trained"),
    size: least("bytes"),
    new: (a, b) => names.compare(b.created || "", a.created || ""),
    old: earliest,
  };

  const found = () => {
    const words = inputs.words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const label = inputs.label.value.trim().toLowerCase();
    const order = ORDERS[inputs.sort.value];
    return tasks
      .filter((task) => words.every((word) => task.text.includes(word)))
      .filter((task) => CHOICES.every((c) => !inputs[c].value || values(task, c).includes(inputs[c].value)))
      .filter((task) => !label || task.labels.some((each) => each.toLowerCase().includes(label)))
      .sort((a, b) => order(a, b) || names.compare(a.name, b.name));
  };

  // Elements.
  const element = (tag, kind, ...children) => {
    const made = document.createElement(tag);
    if (kind) made.className = kind;
    made.append(...children);
    return made;
  };

  const size = (bytes) => {
    const units = ["B", "KB", "MB", "GB"];
    let i = 0;
    for (; bytes >= 1000 && i < units.length - 1; i++) bytes /= 1000;
    return `${bytes.toFixed(i ? 1 : 0)} ${units[i]}`;
  };

  const decimals = (value, most) => value.toFixed(Math.abs(value) < 100 ? most : 1);

  const score = (task) => {
    if (typeof task.score !== "number") return element("div", "score", element("span", "faint", "no score"));
    const between = typeof task.low === "number" && typeof task.high === "number";
    const span = between ? `${decimals(task.low, 3)} to ${decimals(task.high, 3)}` : "";
    const number = element("b", "", decimals(task.score, 4));
    return element("div", "score", number, ` ${task.metric}`, element("div", "faint", span));
  };

  const item = (task) => {
    const link = element("a", "", task.name);
    link.href = `tasks/${task.name}.html`;
    const chips = task.tags.map((tag) => element("span", "tag", tag));
    const head = element("h2", "", link, element("span", "version", `@${task.version}`), ...chips);
    if (task.problem) {
      head.append(element("span", "tag bad", "damaged"));
      return element("li", "task", element("div", "who", head, element("p", "problem", task.problem)));
    }
    const rest = task.labels.length - MOST_LABELS + task.more;
    const more = rest > 0 ? ` and ${rest.toLocaleString("en")} more` : "";
    const labels = task.labels.slice(0, MOST_LABELS).join(" · ") + more;
    const language = task.languages.length ? ` · ${task.languages.join(", ")}` : "";
    return element(
      "li", "task",
      element("div", "who", head, element("p", "faint", labels || task.data)),
      element("div", "what", `${task.kind}${language}`, element("div", "faint", `${task.method} on ${task.base}`)),
      score(task),
      element("div", "price", task.trained.toLocaleString("en"), element("span", "unit", " trained"),
        element("div", "faint", (task.percent ? `${task.percent.toFixed(2)} % · ` : "") + size(task.bytes))),
      element("div", "age faint", task.created.slice(0, 10)),
    );
  };

  const show = () => {
    const all = found();
    const last = Math.max(1, Math.ceil(all.length / PAGE));
    page = Math.min(Math.max(1, page), last);
    const begin = (page - 1) * PAGE;
    const shown = all.slice(begin, begin + PAGE);
    byId("results").replaceChildren(...shown.map(item));
    byId("results").start = begin + 1;
    const of = all.length === tasks.length ? "" : ` of ${tasks.length.toLocaleString("en")}`;
    const nothing = tasks.length ? "No task matches." : "There are no tasks in this store yet.";
    byId("count").textContent = all.length
      ? `${all.length.toLocaleString("en")}${of} ${tasks.length === 1 ? "task" : "tasks"}`
      : nothing;
    byId("pager").hidden = last === 1;
    byId("where").textContent = `Page ${page} of ${last}`;
    byId("previous").disabled = page === 1;
    byId("next").disabled = page === last;
  };

  // The address.
  const usual = (id) => (id === "sort" ? "name" : "");

  const view = () => {
    const set = Object.entries(inputs).filter(([id, input]) => input.value !== usual(id));
    const parameters = new URLSearchParams(set.map(([id, input]) => [id, input.value]));
    if (page > 1) parameters.set("page", page);
    return parameters.toString();
  };

  const read = () => {
    const parameters = new URLSearchParams(location.hash.slice(1));
    for (const [id, input] of Object.entries(inputs)) {
      input.value = parameters.get(id) ?? usual(id);
      if (input.selectedIndex === -1) input.selectedIndex = 0; // a value that this store has not
    }
    page = Number.parseInt(parameters.get("page") ?? "1", 10) || 1;
    show();
  };

  const changed = () => {
    page = 1;
    show();
    history.replaceState(null, "", `#${view()}`);
  };

  const turn = (by) => {
    page += by;
    show();
    history.pushState(null, "", `#${view()}`);
    byId("results").focus();
    scrollTo(0, 0);
  };

  fillChoices();
  read();
  addEventListener("hashchange", read);
  byId("filters").addEventListener("input", changed);
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  byId("filters").addEventListener("reset", () => setTimeout(changed));
  byId("previous").addEventListener("click", () => turn(-1));
  byId("next").addEventListener("click", () => turn(1));
  byId("skip").addEventListener("click", (event) => {
    event.preventDefault();
    byId("results").focus();
  });
  addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, select, textarea");
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      inputs.words.focus();
    }
  });
})();
