// The engine's side of the page: the feed, the charts, the state and the decisions.
import { Chart, SPAN_S } from "./chart.js";
import { CHARTS } from "./charts.js";
import { $, el } from "./dom.js";
import { keys, readEvents, whyFailed } from "./events.js";

const STATES = {
  connecting: "Connecting",
  loading: "Loading",
  ready: "Ready",
  stalled: "Stalled",
  restarting: "Restarting",
  draining: "Stopping",
  lost: "Not connected",
  locked: "Charts locked",
};
const MAX_DECISIONS = 50;
const HIDDEN_S = 10; // a tab in the background stops looking after this long

let samples = [];
let decisions = [];
let charts = [];
let hover = null; // seconds before now, or null
let retry_s = 1;
let connection = null;
let timer = 0;

const now = () => (samples.length ? samples[samples.length - 1].t : 0);

function nearest(t) {
  let best = null;
  for (const sample of samples) if (!best || Math.abs(sample.t - t) < Math.abs(best.t - t)) best = sample;
  return best;
}

function redraw() {
  const end = now();
  const shown = hover === null ? samples[samples.length - 1] : nearest(end + hover);
  for (const chart of charts) {
    chart.fit();
    chart.draw(samples, end, shown, hover !== null);
  }
  const back = shown && hover !== null ? Math.round(end - shown.t) : 0;
  $("span").textContent = hover === null ? "last 3 minutes" : back ? `${back} s ago` : "now";
}

function setState(state, why = "") {
  const words = why.replace(/^loading: /, "");
  $("state").dataset.state = document.body.dataset.state = state;
  $("state-text").textContent = STATES[state] + (words && state === "loading" ? `: ${words}` : "");
  $("state").title = words;
}

function setNotice(text, act = null) {
  $("notice").hidden = !text;
  $("notice-text").textContent = text;
  $("notice-act").hidden = !act;
  if (act) {
    $("notice-act").textContent = act.label;
    $("notice-act").onclick = act.run;
  }
}

function showState(sample) {
  setState(sample.state, sample.why);
  const phases = Object.entries(sample.phases ?? {});
  $("phases").hidden = sample.state !== "loading" || !phases.length;
  $("phases").replaceChildren(...phases.map(([name, seconds]) => el("li", {}, name, " ", el("b", {}, `${seconds.toFixed(1)} s`))));
  if (sample.state === "ready") setNotice("");
  else if (sample.state === "loading") setNotice(`The engine is starting${sample.why ? `. ${sample.why.replace(/^loading: /, "Now: ")}` : ""}.`);
  else if (sample.state === "restarting") setNotice(`The engine is being restarted. ${sample.why}`);
  else setNotice(sample.why || STATES[sample.state]);
}

function age(seconds) {
  if (seconds < 1.5) return "now";
  if (seconds < 100) return `${Math.round(seconds)} s ago`;
  return `${Math.round(seconds / 60)} min ago`;
}

function showDecisions() {
  if (!decisions.length) return;
  const rows = decisions
    .slice(-MAX_DECISIONS)
    .reverse()
    .map((decision) =>
      el(
        "tr",
        { "data-kind": decision.kind },
        el("td", { class: "when" }, age(Math.max(0, now() - decision.t))),
        el("td", { class: "id" }, String(decision.request)),
        el("td", { title: `step ${decision.step}: ${decision.kind} ${decision.reason}` }, el("i", { class: "kind", "aria-hidden": "true" }), decision.words),
      ),
    );
  $("decisions").replaceChildren(...rows);
}

function take({ event, data }) {
  const value = JSON.parse(data);
  if (event === "history") {
    samples = value.samples;
    decisions = value.decisions;
  } else if (event === "sample") {
    samples.push(value);
    showState(value);
  } else if (event === "decisions") {
    decisions = decisions.concat(value).slice(-MAX_DECISIONS);
  }
  while (samples.length && samples[0].t < now() - SPAN_S - 2) samples.shift();
  redraw();
  showDecisions();
}

/** There is no feed while the server loads; then /ready says how far it is. */
async function showLoading() {
  const response = await fetch("ready");
  const told = await response.json();
  if (!String(told.reason).startsWith("loading")) return false;
  showState({ state: "loading", why: told.reason, phases: told.phases_s });
  return true;
}

async function follow() {
  clearTimeout(timer);
  connection?.abort();
  const mine = (connection = new AbortController());
  let again = "The connection to the server was lost.";
  try {
    const response = await fetch("v1/internal/live", { signal: mine.signal, headers: keys.headers("admin-key", "api-key") });
    if (response.status === 401 || response.status === 403) {
      setState("locked");
      setNotice("The charts are for the operators of this server: they need the admin key.", { label: "Enter the key", run: openKeys });
      return;
    }
    if (response.status === 503 && (await showLoading())) {
      timer = setTimeout(follow, 1000);
      return;
    }
    if (!response.ok) throw new Error(await whyFailed(response));
    for await (const event of readEvents(response)) {
      retry_s = 1;
      document.body.classList.remove("stale");
      take(event);
    }
  } catch (error) {
    if (mine.signal.aborted) return;
    if (!(error instanceof TypeError)) again = error.message; // a TypeError is the network's
  }
  if (mine.signal.aborted) return;
  document.body.classList.add("stale");
  setState("lost");
  setNotice(`${again.replace(/\.?$/, ".")} Trying again in ${retry_s} s.`);
  timer = setTimeout(follow, retry_s * 1000);
  retry_s = Math.min(30, retry_s * 2);
}

export function openKeys() {
  $("api-key").value = keys.get("api-key");
  $("admin-key").value = keys.get("admin-key");
  $("keys").showModal();
}

export function startLive() {
  charts = CHARTS.map((spec) => new Chart(spec, (t) => { hover = t; redraw(); }));
  $("charts").append(...charts.map((chart) => chart.node));
  new ResizeObserver(redraw).observe($("charts"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let asleep = 0;
  document.addEventListener("visibilitychange", () => {
    clearTimeout(asleep);
    if (document.hidden) {
      asleep = setTimeout(() => { connection?.abort(); connection = null; clearTimeout(timer); }, HIDDEN_S * 1000);
    } else if (connection === null) {
      follow();
    }
  });
  follow();
  return { reconnect: follow, redraw };
}
