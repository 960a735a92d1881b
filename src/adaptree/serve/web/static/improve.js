// Improve: rows are labelled with the keyboard or a finger, a candidate is trained, and taken or discarded.
//
// Labels stay in this browser until they are trained on and the candidate is taken: only numbers of rows and labels.
// The rows that were offered, with their texts, stay until the tab is closed.
import { ask, byId, element, inAddress, say } from "./app.js";
import { duration, percent, score } from "./words.js";

const page = byId("improve");
const { task, kind, kept, version } = page.dataset;
const here = `/improve/${inAddress(task)}`;
const labels = [...(byId("labels")?.children ?? [])].map((each) => each.textContent);
const KEYS = 9;

const hide = (id, hidden = true) => { if (byId(id)) byId(id).hidden = hidden; };
const complain = (error) => {
  byId("problem").textContent = error.message.charAt(0).toUpperCase() + error.message.slice(1);
  hide("problem", false);
  byId("problem").scrollIntoView({ block: "nearest" });
};
const send = (file) => ask(`/v1/files?name=${encodeURIComponent(file.name)}`, { body: file, headers: { "Content-Type": "application/octet-stream" } });

// What was labelled, kept for a reload

const PLACE = `improve ${task}@${version}`;
let state = { file: null, name: "", data: null, labels: {}, skipped: [], corrections: {}, kept: [] };
const save = () => { try { localStorage.setItem(PLACE, JSON.stringify(state)); } catch { /* then it lasts for this page */ } };
const drop = () => { try { localStorage.removeItem(PLACE); sessionStorage.removeItem(PLACE); } catch { /* it was never there */ } };
try { state = { ...state, ...JSON.parse(localStorage.getItem(PLACE) ?? "{}") }; } catch { /* not ours */ }

// Two lists to go through: new rows, and rows whose label is in doubt

const lists = {
  label: { rows: [], at: 0, made: state.labels, skipped: state.skipped },
  errors: { rows: [], at: 0, made: state.corrections, skipped: state.kept },
};
const saveRows = () => {
  const rows = { file: state.file, label: lists.label.rows, errors: lists.errors.rows, looked: lists.errors.looked };
  try { sessionStorage.setItem(PLACE, JSON.stringify(rows)); } catch { /* then a reload chooses again */ }
};
const savedRows = () => {
  try { return JSON.parse(sessionStorage.getItem(PLACE)) ?? {}; } catch { return {}; }
};
let mode = "label";
let undo = [];
const list = () => lists[mode];
const row = () => list().rows[list().at];
const thinks = (each) => (mode === "errors" ? each.suggested : kind === "regress" ? each.prediction.value : kind === "multilabel" ? each.prediction.labels : each.prediction.label);
const given = (each) => list().made[each.row];

const busy = (text) => { byId("busy").textContent = text; hide("busy", !text); };

const toFirstOpen = () => { lists.label.at = Math.max(0, lists.label.rows.findIndex((each) => !done(each, lists.label))); };

const choose = async (more = false) => {
  hide("problem");
  busy(`Reading ${state.name || "the rows"} …`);
  hide("from");
  try {
    const skip = [...Object.keys(state.labels).map(Number), ...state.skipped];
    const found = await ask(`${here}/choose`, { json: { file: state.file, data: state.data, rows: 20, skip: more ? skip : [] } });
    lists.label.rows = more ? [...lists.label.rows, ...found.offered] : found.offered;
    toFirstOpen();
    saveRows();
    const left = Object.entries(found.left_out).filter(([, count]) => count).map(([why, count]) => `${count.toLocaleString("en")} ${why}`);
    say(`${found.offered.length} rows of ${found.rows} to label.`);
    byId("keys").dataset.left = left.join(", ");
    render();
  } catch (error) {
    hide("from", false);
    if (error.code === "file_not_found") forgetLabels(); // they are of rows that nobody has any more
    state.file = null;
    save();
    complain(error);
  } finally {
    busy("");
  }
};

const forgetLabels = () => {
  Object.keys(state.labels).forEach((key) => delete state.labels[key]);
  state.skipped.length = 0;
  bar();
};

const look = async () => {
  hide("problem");
  busy("Looking at the labels …");
  byId("look").disabled = true;
  try {
    const found = await ask(`${here}/doubted`, { json: { data: state.data } });
    lists.errors.rows = found.doubted;
    lists.errors.at = 0;
    lists.errors.looked = true;
    saveRows();
    say(`${found.doubted.length} labels are in doubt.`);
    render();
  } catch (error) {
    complain(error);
  } finally {
    busy("");
    byId("look").disabled = false;
  }
};

const done = (each, of = list()) => each.row in of.made || of.skipped.includes(each.row);

// The card

const textOf = (each) => (Array.isArray(each.text) ? each.text : [each.text]);
const same = (a, b) => JSON.stringify([a].flat().map(String).sort()) === JSON.stringify([b].flat().map(String).sort());

const shown = () => {
  const each = row();
  const scores = each.prediction?.scores ?? {};
  return labels.length <= KEYS ? labels : [...labels].sort((a, b) => (scores[b] ?? 0) - (scores[a] ?? 0));
};

const answer = (label, place) => {
  const each = row();
  const button = element("button", "");
  button.type = "button";
  if (place < KEYS) button.append(element("kbd", "", String(place + 1)));
  button.append(element("span", "", label));
  const share = each.prediction?.scores?.[label];
  if (share != null) button.append(element("span", "share-of", percent(share)));
  const own = mode === "errors" && [each.label].flat().map(String).includes(label);
  if ([thinks(each)].flat().map(String).includes(label)) button.append(element("span", "thinks", mode === "errors" ? "suggested" : "predicted"));
  else if (own) button.append(element("span", "share-of", "its label"));
  const now = given(each) ?? (kind === "multilabel" ? chosen : undefined);
  button.setAttribute("aria-pressed", String(now !== undefined && [now].flat().map(String).includes(label)));
  button.addEventListener("click", () => press(label));
  return button;
};

let chosen = [];
const typed = () => {
  const field = element("input");
  Object.assign(field, { type: "number", step: "any", id: "number", value: given(row()) ?? "" });
  field.placeholder = score(thinks(row()));
  field.setAttribute("aria-label", "The number");
  const ok = element("button", "", "Set");
  ok.type = "button";
  ok.addEventListener("click", () => { if (field.value !== "") set(Number(field.value)); });
  return [field, ok];
};

const last = String(Math.min(KEYS, labels.length));
const HINTS = {
  classify: [["1", last, "a label"]],
  multilabel: [["1", last, "on or off"], ["Enter", "that is all"]],
  regress: [["Enter", "set the number"]],
};

const render = () => {
  const { rows, at } = list();
  byId("tab-label").setAttribute("aria-selected", String(mode === "label"));
  byId("tab-errors").setAttribute("aria-selected", String(mode === "errors"));
  byId("tab-label").tabIndex = mode === "label" ? 0 : -1;
  byId("tab-errors").tabIndex = mode === "errors" ? 0 : -1;
  hide("label", mode !== "label");
  hide("errors", mode !== "errors");
  hide("from", lists.label.rows.length > 0);
  hide("work", !rows.length);
  const clean = mode === "errors" && lists.errors.looked && !rows.length;
  hide("none", !clean);
  if (clean) byId("none").textContent = "No label is in doubt.";
  bar();
  if (!rows.length) return;
  const each = row();
  chosen = kind === "multilabel" ? [given(each) ?? (mode === "errors" ? each.label : thinks(each)) ?? []].flat().map(String) : [];
  byId("at").textContent = `${at + 1} of ${rows.length}, row ${each.row}`;
  byId("doubt").textContent = mode === "errors" ? `“${[each.label].flat().join(", ") || "none"}” now; ${percent(each.probability)} sure that it is another`
    : each.doubt == null ? "" : `${percent(each.doubt)} in doubt`;
  byId("words").replaceChildren(...textOf(each).map((text) => element("div", "words", text)));
  byId("answers").replaceChildren(...(kind === "regress" ? typed() : shown().map(answer)));
  const proposed = kind === "classify" ? [["Enter", mode === "errors" ? "the suggested one" : "the predicted one"]] : [];
  const hints = [...HINTS[kind], ...proposed, ["←", "→", "to and fro"], ["s", mode === "errors" ? "keep its label" : "skip"], ["u", "undo"]];
  byId("keys").replaceChildren(...hints.map((hint) => {
    const what = hint.at(-1);
    const keys = hint.slice(0, -1).flatMap((key, i) => (i && !["→"].includes(key) ? ["–", element("kbd", "", key)] : [element("kbd", "", key)]));
    return element("span", "", ...keys, ` ${what}`);
  }));
  byId("skip").textContent = mode === "errors" ? "Keep its label" : "Skip";
  byId("done-rows").replaceChildren(...rows.map((one, i) => {
    const button = element("button", list().skipped.includes(one.row) ? "skipped" : one.row in list().made ? "labelled" : "", String(i + 1));
    button.type = "button";
    const what = one.row in list().made ? [list().made[one.row]].flat().join(", ") || "none" : list().skipped.includes(one.row) ? "skipped" : "open";
    button.title = what;
    button.setAttribute("aria-label", `Row ${i + 1}: ${what}`);
    if (i === at) button.setAttribute("aria-current", "true");
    button.addEventListener("click", () => go(i));
    return element("li", "", button);
  }));
  hide("more", mode !== "label" || !rows.every((one) => done(one)));
  byId("undo").disabled = !undo.length;
  byId("back").disabled = at === 0;
};

const bar = () => {
  const made = Object.keys(state.labels).length;
  const corrected = Object.keys(state.corrections).length;
  hide("train-bar", !(made + corrected));
  const words = [made ? `${made} new ${made === 1 ? "label" : "labels"}` : "", corrected ? `${corrected} corrected` : ""].filter(Boolean);
  byId("count").textContent = words.join(", ");
};

const go = (at) => {
  list().at = Math.min(Math.max(at, 0), list().rows.length - 1);
  render();
  byId("card").focus({ preventScroll: true });
  if (kind === "regress") byId("number")?.focus();
};

const next = () => {
  const { rows, at } = list();
  const behind = rows.findIndex((each, i) => i > at && !done(each));
  const any = rows.findIndex((each) => !done(each));
  if (any < 0) {
    render();
    say("All rows are done.");
    byId("train").focus({ preventScroll: true });
    return;
  }
  go(behind >= 0 ? behind : any);
};

const remember = () => {
  const each = row();
  undo.push({ mode, at: list().at, row: each.row, label: list().made[each.row], skipped: list().skipped.includes(each.row) });
};

const set = (label) => {
  const each = row();
  remember();
  const { skipped } = list();
  if (skipped.includes(each.row)) skipped.splice(skipped.indexOf(each.row), 1);
  if (mode === "errors" && same(label, each.label)) { // its own label is no correction
    delete list().made[each.row];
    skipped.push(each.row);
  } else list().made[each.row] = label;
  save();
  next();
};

const skip = () => {
  remember();
  const each = row();
  delete list().made[each.row];
  if (!list().skipped.includes(each.row)) list().skipped.push(each.row);
  save();
  next();
};

const takeBack = () => {
  const latest = undo.pop();
  if (!latest) return;
  mode = latest.mode;
  const of = list();
  delete of.made[latest.row];
  if (latest.label !== undefined) of.made[latest.row] = latest.label;
  const at = of.skipped.indexOf(latest.row);
  if (at >= 0 && !latest.skipped) of.skipped.splice(at, 1);
  if (at < 0 && latest.skipped) of.skipped.push(latest.row);
  save();
  go(latest.at);
};

const press = (label) => {
  if (kind !== "multilabel") return set(label);
  chosen = chosen.includes(label) ? chosen.filter((each) => each !== label) : [...chosen, label];
  for (const [i, button] of [...byId("answers").children].entries()) button.setAttribute("aria-pressed", String(chosen.includes(shown()[i])));
};

const accept = () => {
  if (kind === "multilabel") return set(labels.filter((label) => chosen.includes(label)));
  if (kind === "regress") return byId("number").value === "" ? undefined : set(Number(byId("number").value));
  const label = thinks(row());
  if (label != null) set(String(label));
};

addEventListener("keydown", (event) => {
  if (!byId("work") || byId("work").hidden || event.ctrlKey && event.key !== "z" || event.metaKey || event.altKey) return;
  const typing = event.target.matches?.("input, select, textarea");
  const onButton = event.target.matches?.("button, a, summary") && ["Enter", " "].includes(event.key);
  if (onButton || (typing && !["Enter", "ArrowUp", "ArrowDown", "Escape"].includes(event.key))) return;
  const number = Number(event.key);
  if (event.ctrlKey) takeBack();
  else if (event.key === "Enter") accept();
  else if (["ArrowLeft", "ArrowUp"].includes(event.key)) go(list().at - 1);
  else if (["ArrowRight", "ArrowDown"].includes(event.key)) go(list().at + 1);
  else if (event.key === "u" || event.key === "Backspace") takeBack();
  else if (event.key === "s") skip();
  else if (kind !== "regress" && number >= 1 && number <= Math.min(KEYS, labels.length)) press(shown()[number - 1]);
  else return;
  event.preventDefault();
});

// Files

const onFile = (id, run) => byId(id)?.addEventListener("change", async (event) => {
  const [file] = event.target.files;
  if (!file) return;
  hide("problem");
  try {
    await run(file);
  } catch (error) {
    complain(error);
  }
  event.target.value = "";
});
const usePool = async (file) => {
  busy(`Sending ${file.name} …`);
  try {
    const sent = await send(file);
    Object.assign(state, { file: sent.id, name: sent.name });
    forgetLabels();
    save();
  } finally {
    busy("");
  }
  await choose();
};
onFile("pool", usePool);
onFile("data", async (file) => {
  const sent = await send(file);
  state.data = sent.id;
  save();
  byId("data-name").textContent = sent.name;
});
onFile("own", async (file) => {
  byId("own-result").textContent = "Scoring both …";
  byId("own-result").className = "busy";
  try {
    const sent = await send(file);
    const found = await ask(`${here}/score`, { json: { file: sent.id } });
    ask(`/v1/files/${sent.id}`, { method: "DELETE" }).catch(() => {});
    const side = (title, one) => element("div", "", element("h3", "", title), element("div", "score", score(one.score)),
      element("div", "faint", one.interval ? `95 %: ${score(one.interval[0])} to ${score(one.interval[1])}` : ""));
    byId("own-result").className = "";
    byId("own-result").replaceChildren(element("p", "", `${found.metric} on ${file.name}:`), element("div", "versus", side("In use", found.old), side("New", found.new)));
  } catch (error) {
    byId("own-result").className = "";
    byId("own-result").replaceChildren();
    throw error;
  }
});
byId("own-rows")?.addEventListener("click", () => { forgetLabels(); Object.assign(state, { file: kept, name: "" }); save(); choose(); });
if (byId("drop")) {
  addEventListener("dragover", (event) => { event.preventDefault(); byId("drop").classList.add("over"); });
  addEventListener("dragleave", (event) => { if (!event.relatedTarget) byId("drop").classList.remove("over"); });
  addEventListener("drop", (event) => {
    event.preventDefault();
    byId("drop").classList.remove("over");
    const [file] = event.dataTransfer.files;
    if (file && !byId("from").hidden) usePool(file).catch(complain);
  });
}

// Buttons

const on = (id, run) => byId(id)?.addEventListener("click", run);
const post = async (path, json) => {
  hide("problem");
  try {
    return await ask(`${here}/${path}`, { method: "POST", json: json ?? {} });
  } catch (error) {
    complain(error);
    return null;
  }
};
on("tab-label", () => { mode = "label"; render(); });
on("tab-errors", () => { mode = "errors"; render(); });
document.querySelector(".tabs")?.addEventListener("keydown", (event) => {
  if (!["ArrowLeft", "ArrowRight"].includes(event.key)) return;
  event.preventDefault();
  event.stopPropagation();
  mode = mode === "label" ? "errors" : "label";
  render();
  byId(`tab-${mode}`).focus();
});
on("look", look);
on("back", () => go(list().at - 1));
on("skip", skip);
on("undo", takeBack);
on("more", () => choose(true));
on("train", async () => {
  byId("train").disabled = true;
  const job = await post("train", { file: state.file, data: state.data, labels: state.labels, corrections: state.corrections });
  byId("train").disabled = false;
  if (job) location.assign(`/jobs/${job.id}`);
});
on("take", async () => {
  const found = await post("take");
  if (found) {
    drop();
    location.assign(`/task/${inAddress(task)}`);
  }
});
on("discard", async () => { if (confirm("Discard the new version? Its labels stay in this browser.") && await post("discard")) location.reload(); });

// A candidate on its way

const wait = async () => {
  const job = await ask(`/v1/jobs/${page.dataset.job}`).catch(() => null);
  if (job && job.state !== page.dataset.state && !["queued", "running"].includes(job.state)) return location.reload();
  if (job?.progress) {
    byId("share").value = job.progress.share ?? 0;
    byId("left").textContent = job.progress.seconds_left != null ? `about ${duration(job.progress.seconds_left)} left` : job.state;
  }
  setTimeout(wait, 1500);
};
if (page.dataset.job && ["queued", "running"].includes(page.dataset.state)) wait();
if (byId("work")) {
  bar();
  const before = savedRows();
  if (before.looked) Object.assign(lists.errors, { rows: before.errors, looked: true });
  if (state.file && before.file === state.file && before.label.length) {
    lists.label.rows = before.label;
    toFirstOpen();
    render();
  } else if (state.file) choose();
}
