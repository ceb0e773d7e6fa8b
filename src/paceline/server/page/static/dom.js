// Small helpers. Text enters the page as text only: no markup is ever parsed from a string.

export const $ = (id) => document.getElementById(id);

/** An element with properties (`class`, `data-*` and `aria-*` as attributes) and children. */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name === "class" || name.includes("-")) node.setAttribute(name, value);
    else node[name] = value;
  }
  node.append(...children);
  return node;
}

/** Milliseconds for people: 8.4 ms, 84 ms, 1.20 s. */
export function ms(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 9999.5) return `${(value / 1000).toFixed(0)} s`;
  if (value >= 999.5) return `${(value / 1000).toFixed(2)} s`;
  return value >= 99.5 ? `${value.toFixed(0)} ms` : `${value.toFixed(value >= 10 ? 0 : 1)} ms`;
}

/** A count or a rate: three digits that matter, thousands set apart. */
export function count(value) {
  if (value === null || value === undefined) return "–";
  const digits = Number.isInteger(value) || value >= 100 ? 0 : 1;
  return value.toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: digits });
}

export const percent = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(value > 0 && value < 0.1 ? 1 : 0)} %`);
