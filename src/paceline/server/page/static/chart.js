// One small chart on a canvas: lines or stacked steps over the last minutes, crisp on any display.
// Values are drawn as they came. A missing value is a gap, never a zero.
import { el } from "./dom.js";

export const SPAN_S = 180;
const LEFT = 40;
const RIGHT = 10;
const TOP = 8;
const BOTTOM = 18;
const GAP_S = 2.6; // samples further apart than this are not joined
const FEW = 59; // below this many requests a p95 has no upper bound at 95 % confidence

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** The smallest round number that holds `value` and has a round half. */
function niceTop(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 6, 8, 10].map((step) => step * power).find((top) => top >= value * 0.999);
}

const swatch = (series, spec) =>
  el("i", { class: `swatch ${series.color.slice(2)}${spec.stacked ? "" : " stroke"}`, "aria-hidden": "true" });

export class Chart {
  /**
   * spec: {id, title, note, empty, format, least, top, stacked, series: [{key, label, color, few, value}], dots}
   * `least`: the axis never ends below it; `top`: it always ends there. A series that is not `drawn` is told in the
   * legend only. `few`: the field with the number of requests behind a percentile; it is dashed while they are few.
   * `dots`: index in each sample's `finished` pairs.
   */
  constructor(spec, onHover) {
    this.spec = spec;
    this.values = spec.series.map(() => el("b", {}, "–"));
    const legend = spec.series.map((series, index) =>
      el("li", {}, ...(series.color ? [swatch(series, spec)] : []), `${series.label} `, this.values[index]),
    );
    this.canvas = el("canvas", { "aria-hidden": "true" });
    this.blank = el("p", { class: "empty" }, el("span", {}, spec.empty));
    this.node = el(
      "figure",
      { class: "chart", "data-chart": spec.id },
      el("figcaption", {}, el("h3", {}, spec.title, ...(spec.note ? [" ", el("small", {}, spec.note)] : [])), el("ul", { class: "legend" }, ...legend)),
      el("div", { class: "plot" }, this.canvas, this.blank),
    );
    this.canvas.addEventListener("pointermove", (event) => {
      const share = (event.offsetX - LEFT) / (this.width - LEFT - RIGHT);
      onHover(share >= 0 && share <= 1 ? (share - 1) * SPAN_S : null);
    });
    this.canvas.addEventListener("pointerleave", () => onHover(null));
    this.drawn = spec.series.filter((series) => series.drawn !== false);
    this.width = 0;
  }

  /** Takes the size the layout gives it. Returns whether it changed. */
  fit() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const scale = window.devicePixelRatio || 1;
    if (width === this.width && height === this.height && scale === this.scale) return false;
    Object.assign(this, { width, height, scale });
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    return true;
  }

  /** Draws `samples` (oldest first) up to `now`; `shown` is the sample whose values the legend tells. */
  draw(samples, now, shown, hovering) {
    const { spec } = this;
    spec.series.forEach((series, index) => {
      const value = shown ? this.value(series, shown) : undefined;
      this.values[index].textContent = (series.format ?? spec.format)(value);
    });
    const pen = this.canvas.getContext("2d");
    pen.setTransform(this.scale, 0, 0, this.scale, 0, 0);
    pen.clearRect(0, 0, this.width, this.height);
    const drawn = this.drawn;
    const any = samples.some((sample) => drawn.some((series) => this.value(series, sample) !== undefined));
    this.blank.hidden = any;
    const top = this.top(samples);
    const x = (t) => LEFT + (1 - (now - t) / SPAN_S) * (this.width - LEFT - RIGHT);
    const y = (value) => this.height - BOTTOM - (Math.min(value, top) / top) * (this.height - TOP - BOTTOM);
    this.grid(pen, top, y, any);
    pen.save();
    pen.beginPath();
    pen.rect(LEFT, 0, this.width - LEFT - RIGHT + 2, this.height);
    pen.clip();
    if (spec.stacked) this.stack(pen, samples, x, y);
    else this.lines(pen, samples, x, y);
    pen.restore();
    if (hovering && shown) this.cursor(pen, shown, x, y);
  }

  value(series, sample) {
    return series.value ? series.value(sample) : sample[series.key];
  }

  top(samples) {
    const { spec } = this;
    if (spec.top) return spec.top;
    let most = spec.least;
    for (const sample of samples) {
      const values = this.drawn.map((series) => this.value(series, sample) ?? 0);
      most = Math.max(most, spec.stacked ? values.reduce((sum, value) => sum + value, 0) : Math.max(...values));
      if (spec.dots !== undefined) for (const pair of sample.finished ?? []) most = Math.max(most, pair[spec.dots] ?? 0);
    }
    return niceTop(most);
  }

  grid(pen, top, y, any) {
    pen.font = "11px system-ui, sans-serif";
    pen.fillStyle = css("--muted");
    pen.strokeStyle = css("--line");
    pen.lineWidth = 1;
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    for (const share of [0, 0.5, 1]) {
      const at = Math.round(y(top * share)) + 0.5;
      pen.beginPath();
      pen.moveTo(LEFT, at);
      pen.lineTo(this.width - RIGHT, at);
      pen.stroke();
      if (any) pen.fillText(this.spec.axis(top * share), LEFT - 6, at);
    }
    pen.textBaseline = "alphabetic";
    for (const [back, words] of [[180, "−3 min"], [120, "−2"], [60, "−1"], [0, "now"]]) {
      const at = LEFT + (1 - back / SPAN_S) * (this.width - LEFT - RIGHT);
      pen.textAlign = back === 180 ? "left" : back === 0 ? "right" : "center";
      pen.fillText(words, at, this.height - 3);
    }
  }

  lines(pen, samples, x, y) {
    const { spec } = this;
    if (spec.dots !== undefined) {
      pen.fillStyle = css("--dot");
      for (const sample of samples) {
        for (const pair of sample.finished ?? []) {
          if (pair[spec.dots] === null) continue;
          pen.beginPath();
          pen.arc(x(sample.t), y(pair[spec.dots]), 1.7, 0, 7);
          pen.fill();
        }
      }
    }
    for (const series of this.drawn) {
      pen.strokeStyle = css(series.color);
      pen.lineWidth = series.few ? 1.25 : 1.75;
      pen.lineJoin = "round";
      let before = null;
      let dashed = null;
      const finish = () => dashed !== null && pen.stroke();
      for (const sample of samples) {
        const value = this.value(series, sample);
        if (value === undefined) {
          before = null;
          continue;
        }
        const joined = before && sample.t - before.t < GAP_S;
        const dash = Boolean(series.few) && sample[series.few] < FEW;
        if (!joined || dash !== dashed) {
          finish();
          dashed = dash;
          pen.setLineDash(dash ? [3, 3] : []);
          pen.beginPath();
          if (joined) pen.moveTo(x(before.t), y(before.value));
          else pen.moveTo(x(sample.t) - 0.5, y(value)); // a lone sample is a visible point
        }
        pen.lineTo(x(sample.t), y(value));
        before = { t: sample.t, value };
      }
      finish();
      pen.setLineDash([]);
    }
  }

  /** Each sample fills the time since the one before it. */
  stack(pen, samples, x, y) {
    samples.forEach((sample, index) => {
      const before = samples[index - 1];
      const from = before && sample.t - before.t < GAP_S ? before.t : sample.t - 0.5;
      const left = Math.round(x(from) * this.scale) / this.scale;
      const right = Math.round(x(sample.t) * this.scale) / this.scale;
      let sum = 0;
      for (const series of this.drawn) {
        const value = this.value(series, sample);
        if (!value) continue;
        const low = Math.round(y(sum) * this.scale) / this.scale;
        const high = Math.round(y(sum + value) * this.scale) / this.scale;
        pen.fillStyle = css(series.color);
        pen.fillRect(left, high, right - left, low - high);
        sum += value;
      }
    });
  }

  cursor(pen, shown, x, y) {
    const at = Math.round(x(shown.t)) + 0.5;
    pen.strokeStyle = css("--muted");
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(at, TOP);
    pen.lineTo(at, this.height - BOTTOM);
    pen.stroke();
    if (this.spec.stacked) return;
    for (const series of this.drawn) {
      const value = this.value(series, shown);
      if (value === undefined) continue;
      pen.fillStyle = css(series.color);
      pen.beginPath();
      pen.arc(at, y(value), 3, 0, 7);
      pen.fill();
    }
  }
}
