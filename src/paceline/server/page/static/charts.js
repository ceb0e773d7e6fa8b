// Which charts there are, and what each shows. The guide (docs/guides/live-page.md) says the same in sentences.
import { count, ms, percent } from "./dom.js";

const blocks = (sample) => (sample.free === undefined ? undefined : sample.free + sample.cached + sample.held);
const share = (key) => (sample) => (sample[key] === undefined ? undefined : sample[key] / blocks(sample));
const short = (value) => (value >= 1000 ? `${Number((value / 1000).toPrecision(3))}k` : `${Number(value.toPrecision(3))}`);
const axisMs = (value) => (value >= 1000 ? `${Number((value / 1000).toPrecision(3))} s` : short(value));

export const CHARTS = [
  {
    id: "requests",
    title: "Requests",
    empty: "No sample yet",
    format: count,
    axis: short,
    least: 4,
    series: [
      { key: "running", label: "running", color: "--a" },
      { key: "waiting", label: "waiting", color: "--b" },
    ],
  },
  {
    id: "output",
    title: "Tokens per second",
    empty: "No sample yet",
    format: count,
    axis: short,
    least: 10,
    series: [
      { key: "output_tps", label: "output", color: "--a" },
      { key: "prompt_tps", label: "prompt", drawn: false },
    ],
  },
  {
    id: "ttft",
    title: "Time to first token",
    note: "last minute",
    empty: "No request has ended yet",
    format: ms,
    axis: axisMs,
    least: 10,
    dots: 0,
    series: [
      { key: "ttft_p50", label: "p50", color: "--a" },
      { key: "ttft_p95", label: "p95", color: "--b", few: "num_ttft" },
      { key: "num_ttft", label: "requests", format: count, drawn: false },
    ],
  },
  {
    id: "tpot",
    title: "Time per output token",
    note: "last minute",
    empty: "No request has ended yet",
    format: ms,
    axis: axisMs,
    least: 10,
    dots: 1,
    series: [
      { key: "tpot_p50", label: "p50", color: "--a" },
      { key: "tpot_p95", label: "p95", color: "--b", few: "num_tpot" },
      { key: "num_tpot", label: "requests", format: count, drawn: false },
    ],
  },
  {
    id: "kv",
    title: "KV cache",
    note: "share of blocks",
    empty: "No sample yet",
    format: percent,
    axis: percent,
    least: 1,
    top: 1,
    stacked: true,
    series: [
      { label: "held", color: "--a", value: share("held") },
      { label: "cached", color: "--soft", value: share("cached") },
      { label: "free", color: "--none", value: share("free"), drawn: false },
    ],
  },
  {
    id: "hits",
    title: "Prefix hits",
    note: "of prompt tokens, last minute",
    empty: "No prompt in the last minute",
    format: percent,
    axis: percent,
    least: 1,
    top: 1,
    series: [{ key: "hit_rate", label: "from the cache", color: "--a" }],
  },
  {
    id: "batch",
    title: "Batch",
    note: "tokens per step",
    empty: "No step yet",
    format: count,
    axis: short,
    least: 4,
    stacked: true,
    series: [
      { key: "step_output", label: "decode", color: "--a" },
      { key: "step_prompt", label: "prefill", color: "--b" },
    ],
  },
  {
    id: "step",
    title: "Step time",
    note: "newest step",
    empty: "No step yet",
    format: ms,
    axis: axisMs,
    least: 1,
    series: [
      { key: "device_ms", label: "model", color: "--a" },
      { key: "host_ms", label: "scheduler", color: "--b" },
    ],
  },
];
