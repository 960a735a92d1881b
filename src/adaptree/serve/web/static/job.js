// A job, live: all its events from the first on, then each as it comes; a reload shows the same again.
import { ask, byId, element, inAddress, say } from "./app.js";
import { draw } from "./charts.js";
import { duration, score } from "./words.js";

const page = byId("job");
const { id, improves } = page.dataset;
const ENDED = ["done", "failed", "cancelled"];
const LOWER = ["mse", "mae", "perplexity", "loss"];
let state = page.dataset.state;
let losses = []; // a list of points for each training: the last one, of few rows, is on all of them
let held = 0;
let scores = [];
let metric = "";
let source = null;
let seen = 0;
let drawn = 0;
let resumed = false; // a worker goes on from a checkpoint, and trains some steps again

const hide = (name, hidden = true) => { byId(name).hidden = hidden; };
const better = (a, b) => (LOWER.includes(metric) ? a < b : a > b);

// What a job is just now

const showState = (name) => {
  state = name;
  byId("state").textContent = name;
  byId("state").className = `state ${name}`;
  document.title = `${document.querySelector("h1").textContent}: ${name} · adaptree`;
  hide("keep-best", name !== "running" || !scores.length); // before that there is no best
  hide("cancel", ENDED.includes(name));
  hide("retry", !["failed", "cancelled"].includes(name));
  hide("share", ENDED.includes(name) && name !== "done");
  if (name === "done") byId("share").value = 1;
};

const showProgress = (progress) => {
  if (!progress) return;
  if (progress.share != null && state !== "done") byId("share").value = progress.share;
  const parts = [];
  if (progress.epochs > 1) parts.push(`epoch ${progress.epoch} of ${progress.epochs}`);
  if (progress.step) parts.push(`step ${progress.step.toLocaleString("en")}`);
  if (progress.loss != null) parts.push(`loss ${score(progress.loss)}`);
  if (progress.score != null) parts.push(`${progress.metric} ${score(progress.score)}`);
  byId("where").textContent = parts.join(" · ") || (state === "running" ? "the data is read" : "");
  byId("left").textContent = progress.seconds_left != null && !ENDED.includes(state) ? progress.seconds_left < 1 ? "almost done" : `about ${duration(progress.seconds_left)} left` : "";
};

const fact = (name, value, more) => {
  const box = element("div", "", element("dt", "", name), element("dd", "", value));
  if (more) box.append(element("dd", "faint", more));
  return box;
};

const showJob = (job) => {
  showState(job.state);
  showProgress(job.progress);
  if (job.state === "queued") {
    byId("where").textContent = job.position === 1 ? "It is the next one." : `Number ${job.position} in the queue.`;
    byId("left").textContent = "";
  }
  hide("error", !job.error);
  if (job.error) {
    byId("error").replaceChildren(element("p", "", job.error.message), ...(job.error.hint ? [element("p", "hint", job.error.hint)] : []));
  }
  hide("result", job.state !== "done");
  if (job.state === "done") showTask(job);
  if (job.cancel && !ENDED.includes(job.state)) byId("where").textContent = job.cancel === "best" ? "stopping; the best so far is kept" : "stopping";
};

const showTask = (job) => {
  const part = job.metrics?.test ? "test" : "validation";
  const main = ([name]) => Number(name === job.progress?.metric); // what the best epoch was chosen by comes first
  const found = Object.entries(job.metrics?.[part] ?? {}).sort((a, b) => main(b) - main(a)).slice(0, 4);
  byId("scores").replaceChildren(
    ...found.map(([name, value]) => fact(name.replaceAll("_", " "), score(value), part === "test" ? "on the test rows" : held ? `on ${held.toLocaleString("en")} held-out rows` : "on held-out rows")),
    fact("Trained in", duration(job.bill.seconds), `${job.bill.rows.toLocaleString("en")} rows`),
  );
  byId("where").textContent = held && held < 30 ? `Of ${held} rows, one more or less that is right is ${score(1 / held)}.` : "";
  byId("left").textContent = job.task;
  const open = byId("open");
  const again = byId("improve");
  if (improves) {
    open.textContent = "Compare it with the version in use";
    open.href = `/improve/${inAddress(improves)}`;
  } else {
    open.href = `/task/${inAddress(job.task.split("@")[0])}`;
    again.href = `/improve/${inAddress(job.task.split("@")[0])}`;
    hide("improve", false);
  }
  hide("open", false);
};

const refresh = async () => showJob(await ask(`/v1/jobs/${id}`));

// Its events

const curves = () => {
  if (losses.length) {
    const all = losses.flat();
    draw(byId("loss"), losses, { label: `Loss: ${score(all[0][1])} at first, ${score(all.at(-1)[1])} now`, zero: true });
    if (losses.length > 1) byId("loss").querySelector("figcaption").textContent = "Loss, by step; then once more on all rows";
  }
  if (scores.length) {
    const best = scores.reduce((a, b) => (better(b[1], a[1]) ? b : a));
    byId("score").querySelector("figcaption").textContent = `${metric} on held-out rows, by epoch: best ${score(best[1])}`;
    if (scores.length > 1) draw(byId("score"), [scores], { label: `${metric}: ${score(scores.at(-1)[1])} after epoch ${scores.at(-1)[0]}, best ${score(best[1])}`, marks: scores.length < 40, best });
  }
};

const later = () => { if (!drawn) drawn = requestAnimationFrame(() => { drawn = 0; curves(); }); };

const log = (data, text, kind = "") => {
  const when = new Date(1000 * data.time);
  const time = element("time", "", when.toLocaleTimeString([], { hour12: false }));
  time.dateTime = when.toISOString();
  const list = byId("log");
  const bottom = list.scrollTop + list.clientHeight > list.scrollHeight - 20;
  list.append(element("li", "", time, element("span", kind, text)));
  if (bottom) list.scrollTop = list.scrollHeight;
};

// A training that begins anew is drawn behind the one before.
const addLoss = (step, loss) => {
  if (resumed && losses.length) losses[losses.length - 1] = losses.at(-1).filter((each) => each[2] < step);
  resumed = false;
  const last = losses.at(-1)?.at(-1);
  if (!losses.length || (last && step < last[2])) losses.push([]);
  const before = losses.length > 1 ? losses.at(-2).at(-1)[0] : 0;
  losses.at(-1).push([before + step, loss, step]);
};

const HANDLERS = {
  note: (data) => {
    if (data.settings) {
      held = data.validation;
      const { epochs, objective } = data.settings;
      log(data, `Training begins: ${data.method} on ${data.base}, ${objective}, ${data.train.toLocaleString("en")} rows and ${data.validation.toLocaleString("en")} held out${epochs && objective !== "contrastive" ? `, up to ${epochs} epochs` : ""}.`);
    } else log(data, data.text[0].toUpperCase() + data.text.slice(1), data.warning ? "warning" : "");
  },
  progress: (data) => {
    if (data.loss != null && data.step != null) addLoss(data.step, data.loss);
    showProgress(data);
    later();
  },
  epoch: (data) => {
    metric = data.metric;
    const value = data[metric];
    if (value != null) scores = [...scores.filter((each) => each[0] < data.epoch), [data.epoch, value]];
    if (state === "running") hide("keep-best", false);
    log(data, `Epoch ${data.epoch}${data.epochs > 1 ? ` of ${data.epochs}` : ""}: loss ${score(data.train_loss)}, ${metric} ${score(value)}`);
    later();
  },
  state: (data) => {
    if (data.state === "queued" && data.why) log(data, `Back in the queue: ${data.why}.`);
    else log(data, { queued: "Queued.", running: data.attempt > 1 ? `A worker goes on (attempt ${data.attempt}).` : "A worker has it.", done: "Done.", failed: "Failed.", cancelled: "Cancelled." }[data.state] ?? data.state);
    showState(data.state);
    resumed = data.attempt > 1;
    if (ENDED.includes(data.state)) {
      source.close();
      curves();
      say(`The job is ${data.state}.`);
    }
    refresh().catch(() => {});
  },
};

const follow = () => {
  source?.close();
  source = new EventSource(`/v1/jobs/${id}/events?after=${seen}`);
  for (const [name, handle] of Object.entries(HANDLERS)) {
    source.addEventListener(name, (event) => {
      if (Number(event.lastEventId) <= seen) return;
      seen = Number(event.lastEventId);
      handle(JSON.parse(event.data));
    });
  }
  source.addEventListener("error", () => { if (source.readyState === EventSource.CLOSED && !ENDED.includes(state)) setTimeout(follow, 3000); });
};

// What can be done

const act = async (path) => {
  hide("refused");
  try {
    const job = await ask(`/v1/jobs/${id}/${path}`, { method: "POST" });
    showJob(job);
    return true;
  } catch (error) {
    byId("refused").textContent = error.message;
    hide("refused", false);
    return false;
  }
};
byId("keep-best").addEventListener("click", () => act("cancel?keep=best"));
byId("cancel").addEventListener("click", () => { if (confirm("Cancel this job? Nothing of it is kept.")) act("cancel?keep=nothing"); });
byId("retry").addEventListener("click", async () => {
  [losses, scores] = [[], []];
  if (await act("retry")) follow();
});
setInterval(() => { if (state === "queued" && !document.hidden) refresh().catch(() => {}); }, 2000);

showState(state);
refresh().catch(() => {});
follow();
