// New task: a file is sent, checked after each change, and trained on.
import { ask, byId, debounced, element, say } from "./app.js";
import { bytes, duration } from "./words.js";

const form = byId("plan");
const SELECTS = ["text", "text_pair", "label"];
let file = null; // what the server said of the upload
let last = null; // what it said of the last check
let others = {}; // the ids of its other files: validation, test, descriptions
let turn = 0;

const show = (id, shown = true) => { byId(id).hidden = !shown; };

// The file

const send = async (content, name) => {
  const mine = ++turn;
  show("wrong", false);
  show("plan", false);
  show("sending");
  byId("sending").textContent = `Sending ${name}, ${bytes(content.size)} …`;
  try {
    const sent = await upload(content, name);
    const rows = await ask(`/new/${sent.id}/rows`);
    if (mine !== turn) return void forget(sent.id);
    forgetAll();
    file = { ...sent, ...rows };
    show("sending", false);
    begin();
  } catch (error) {
    if (mine !== turn) return;
    show("sending", false);
    fail("wrong", error);
  }
};

const upload = (content, name) => ask(`/v1/files?name=${encodeURIComponent(name)}`, {
  body: content, headers: { "Content-Type": "application/octet-stream" },
});

const sendOther = async (input) => {
  const part = input.dataset.part;
  const [content] = input.files;
  const of = file;
  if (others[part]) forget(others[part]);
  delete others[part];
  byId("start").disabled = true;
  try {
    const sent = content && await upload(content, content.name);
    if (of !== file || content !== input.files[0]) return void (sent && forget(sent.id));
    if (sent) others[part] = sent.id;
    check();
  } catch (error) {
    input.value = "";
    await check();
    fail("refused", error);
  }
};

const forgetAll = () => {
  for (const id of [file?.id, ...Object.values(others)]) if (id) forget(id);
  file = null;
  others = {};
};

const forget = (id) => ask(`/v1/files/${id}`, { method: "DELETE" }).catch(() => {});

const named = (stem) => {
  const plain = stem.toLowerCase().normalize("NFKD").replace(/\.(gz|xz)$/, "").replace(/\.[a-z0-9]+$/, "")
    .replace(/[^a-z0-9_-]+/g, "-").replace(/^[^a-z0-9]+|-+$/g, "").slice(0, 64);
  return plain || "task";
};

const begin = () => {
  form.reset();
  byId("file-name").textContent = file.name;
  byId("file-size").textContent = bytes(file.bytes);
  byId("name").value = named(file.name);
  fillColumns(file.columns);
  table(file.columns, file.rows, {});
  show("source", false);
  show("plan");
  form.scrollIntoView({ block: "nearest" });
  check();
};

const fillColumns = (columns) => {
  for (const id of SELECTS) {
    const chosen = byId(id).value;
    const none = id === "text_pair" ? "none" : "as guessed";
    byId(id).replaceChildren(option("", none), ...columns.map((name) => option(name, name)));
    byId(id).value = columns.includes(chosen) ? chosen : "";
  }
};

const option = (value, text) => Object.assign(element("option"), { value, textContent: text });

// The check

const settings = () => {
  const found = { name: byId("name").value.trim() };
  for (const id of ["kind", "method", ...SELECTS]) if (byId(id).value) found[id] = byId(id).value;
  for (const id of ["epochs", "seed"]) if (byId(id).value) found[id] = Number(byId(id).value);
  for (const id of ["fast", "merge_labels"]) if (byId(id).checked) found[id] = true;
  return found;
};

const check = async () => {
  const mine = ++turn;
  form.setAttribute("aria-busy", "true");
  byId("start").disabled = true;
  try {
    const asked = new URLSearchParams({ settings: JSON.stringify(settings()), ...others });
    const found = await ask(`/v1/files/${file.id}/check?${asked}`);
    if (mine !== turn) return;
    last = found;
    show("refused", false);
    render(found);
    byId("start").disabled = false;
  } catch (error) {
    if (mine !== turn) return;
    for (const id of ["facts", "balance", "findings"]) byId(id).replaceChildren();
    byId("estimate").textContent = "";
    fail("refused", error);
    byId("findings").append(finding("bad", error));
  } finally {
    if (mine === turn) form.removeAttribute("aria-busy");
  }
};

const finding = (kind, error) => {
  const box = element("div", `finding ${kind}`, element("p", "", sentence(error.what ?? error.message)));
  if (error.hint) box.append(element("p", "hint", error.hint));
  return box;
};

const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);

const fail = (id, error) => {
  byId(id).replaceChildren(element("p", "", sentence(error.message)));
  show(id);
};

const split = ({ train, validation, test }) => {
  const held = others.validation ? "in the validation file" : "held out";
  const parts = [`${train.toLocaleString("en")} to train`, `${validation.toLocaleString("en")} ${held}`];
  return [...parts, ...(test ? [`${test.toLocaleString("en")} to test`] : [])].join(", ");
};

const fact = (name, value, more = "") => {
  const box = element("div", "", element("dt", "", name), element("dd", "", value));
  if (more) box.append(element("dd", "faint", more));
  return box;
};

const REGIMES = {
  contrastive: ["Contrastive", "texts of one label are drawn together, then a head is solved"],
  "cross-entropy": ["Cross-entropy", "it learns from each row, epoch by epoch"],
  "head-first": ["Head first", "the head is solved, then the adapters are trained"],
};

const render = (found) => {
  const why = found.why ?? {};
  if (!file.columns.length) {
    file.columns = found.columns;
    fillColumns(found.columns);
  }
  guessed("kind", found.kind, why.kind);
  for (const id of SELECTS) guessed(id, found.roles[id === "text_pair" ? "pair" : id], why[id]);
  byId("epochs").placeholder = found.regime.objective === "contrastive" ? "it counts steps" : `up to ${found.settings.epochs}`;
  byId("epochs-why").textContent = byId("epochs").value || found.regime.objective === "contrastive" ? "" : sentence(why.epochs ?? "");
  const [regime, means] = REGIMES[found.regime.objective] ?? [found.regime.objective, ""];
  byId("facts").replaceChildren(
    fact("Rows", found.rows.toLocaleString("en"), split(found.parts)),
    fact("Kind", found.kind, found.why?.kind ?? ""),
    fact("Regime", regime, [found.regime.why, means].filter(Boolean).join(": ")),
    fact("Takes about", duration(found.estimate_seconds), "on two cores, once its turn comes"),
  );
  byId("estimate").textContent = `about ${duration(found.estimate_seconds)}`;
  byId("balance").replaceChildren(...shares(found));
  const problems = found.problems ?? [];
  byId("findings").replaceChildren(...(problems.length
    ? problems.map((text) => element("div", "finding", element("p", "", sentence(text))))
    : [element("div", "finding good", element("p", "", "Nothing looks wrong in it."))]));
  byId("command").textContent = found.command;
  table(found.columns, file.rows.length ? file.rows : found.preview, found.roles);
  say(`${found.rows} rows, ${found.kind}, ${problems.length || "no"} findings.`);
};

// What stands for a choice that nobody has made, and why.
const guessed = (id, value, why = "") => {
  byId(id).options[0].textContent = value ? `${value} (guessed)` : "none";
  byId(`${id}-why`).textContent = byId(id).value || !value ? "" : sentence(why);
};

const shares = (found) => {
  if (!found.balance?.length) return [];
  const box = element("div", "shares");
  const most = Math.max(...found.balance.map((each) => each.percent));
  for (const each of found.balance.slice(0, 12)) {
    const bar = element("meter");
    Object.assign(bar, { min: 0, max: most, value: each.percent });
    bar.setAttribute("aria-label", `${each.label}: ${each.rows}`);
    box.append(element("span", "", String(each.label)), bar, element("span", "number", `${each.rows.toLocaleString("en")} · ${each.percent.toFixed(0)} %`));
  }
  const more = found.balance.length - 12;
  return more > 0 ? [box, element("p", "faint", `… and ${more} more labels`)] : [box];
};

const table = (columns, rows, roles) => {
  const role = (name) => Object.entries(roles).filter(([, column]) => column && String(column).split(",").includes(name)).map(([key]) => key)[0];
  const head = element("tr", "", element("th", "", "row"));
  for (const name of columns) {
    const cell = element("th", "", name);
    cell.scope = "col";
    if (role(name)) cell.append(element("span", "role", role(name)));
    head.append(cell);
  }
  const body = rows.map((row, i) => {
    const line = element("tr", "", element("td", "faint", String(row.row ?? i + 1)));
    for (const name of columns) line.append(element("td", role(name) ? "read" : "", row[name] ?? ""));
    return line;
  });
  byId("preview").replaceChildren(element("thead", "", head), element("tbody", "", ...body));
};

// Start

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  byId("start").disabled = true;
  try {
    const job = await ask("/v1/jobs", { json: { file: file.id, ...others, settings: settings(), keep_data: byId("keep").checked } });
    location.assign(`/jobs/${job.id}`);
  } catch (error) {
    fail("refused", error);
    byId("start").disabled = false;
  }
});
form.addEventListener("input", debounced((event) => { if (file && event.target.id !== "keep" && !event.target.dataset.part) check(); }, 250));
for (const input of form.querySelectorAll("[data-part]")) {
  input.addEventListener("click", () => { input.value = ""; }); // so that a file that was mended can be chosen again
  for (const kind of ["change", "cancel"]) input.addEventListener(kind, () => sendOther(input));
}
byId("another").addEventListener("click", () => {
  turn += 1;
  forgetAll();
  show("plan", false);
  show("refused", false);
  show("source");
  byId("file").value = "";
  byId("file").focus();
});

// Ways in

byId("file").addEventListener("change", (event) => {
  const [found] = event.target.files;
  event.target.value = ""; // so that a file that was mended can be chosen again
  if (found) send(found, found.name);
});
const drop = byId("drop");
addEventListener("dragover", (event) => { event.preventDefault(); drop.classList.add("over"); });
addEventListener("dragleave", (event) => { if (!event.relatedTarget) drop.classList.remove("over"); });
addEventListener("drop", (event) => {
  event.preventDefault();
  drop.classList.remove("over");
  const found = event.dataTransfer.files[0];
  if (found) send(found, found.name);
});
const typed = (text) => send(new Blob([text.trimEnd() + "\n"]), text.includes("\t") ? "pasted.tsv" : "pasted.csv");
addEventListener("paste", (event) => {
  if (event.target.closest?.("input, textarea") || byId("source").hidden) return;
  const [found] = event.clipboardData.files;
  const text = event.clipboardData.getData("text/plain");
  if (text.includes("\n")) typed(text);
  else if (found) send(found, found.name);
});
byId("use-rows").addEventListener("click", () => { if (byId("rows").value.trim()) typed(byId("rows").value); });
