"use strict";
(() => {
  const root = document.documentElement;
  const narrow = matchMedia("(max-width: 640px)");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const drawn = new Map(); // figure id -> {element, figure, hidden traces, view}
  let Plotly = null;
  let printing = false;

  // --- colours: "@name" or "@name/opacity" stands for a variable of the style sheet
  const colour = (name) => {
    const [variable, opacity] = name.slice(1).split("/");
    const value = getComputedStyle(root).getPropertyValue("--" + variable).trim();
    if (!opacity) return value;
    const [r, g, b] = [1, 3, 5].map((i) => parseInt(value.slice(i, i + 2), 16));
    return `rgba(${r},${g},${b},${opacity})`;
  };
  const themed = (value) => {
    if (typeof value === "string") return /^@[a-z]/.test(value) ? colour(value) : value;
    if (Array.isArray(value)) return value.map(themed);
    if (value && typeof value === "object")
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, themed(item)]));
    return value;
  };

  // --- layout that all figures share
  const axis = (own) => ({
    gridcolor: "@line", linecolor: "@edge", zerolinecolor: "@line", tickcolor: "@edge",
    showline: true, ticks: "outside", ticklen: 4, automargin: true, fixedrange: narrow.matches,
    nticks: narrow.matches && own?.type !== "category" ? 5 : undefined,
    ...own,
    title: { standoff: 8, ...(own && own.title), font: { size: 12, color: "@muted" } },
  });
  const laidOut = (layout, width) => {
    const full = {
      autosize: !width, width: width || undefined,
      paper_bgcolor: "@paper", plot_bgcolor: "@paper",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: "@ink" },
      margin: { l: 8, r: 14, t: 12, b: 8 },
      showlegend: false,
      hovermode: "closest",
      dragmode: narrow.matches ? false : "zoom",
      hoverlabel: { bgcolor: "@paper", bordercolor: "@edge", font: { color: "@ink", size: 12 }, align: "left" },
      ...layout,
    };
    for (const name of Object.keys(full)) if (/^[xy]axis/.test(name)) full[name] = axis(full[name]);
    full.xaxis ??= axis({});
    full.yaxis ??= axis({});
    return themed(full);
  };
  const config = { responsive: true, displayModeBar: false, doubleClick: "reset", showTips: false };

  const merge = (base, change) => {
    const full = structuredClone(base);
    for (const [path, value] of Object.entries(change)) {
      const keys = path.split(".");
      let place = full;
      for (const key of keys.slice(0, -1)) place = place[key] ??= {};
      place[keys.at(-1)] = value;
    }
    return full;
  };

  const draw = (state) => {
    const { figure, element } = state;
    const traces = figure.traces.map((trace, i) => {
      const gone = state.hidden.has(trace.legendgroup ?? trace.name ?? i);
      return { ...themed(trace), visible: gone ? "legendonly" : true };
    });
    const layout = merge(figure.layout, figure.views.length ? figure.views[state.view].layout : {});
    return Plotly.react(element, traces, laidOut(layout, printing ? Math.min(element.clientWidth, 660) : 0), config);
  };
  const redraw = () => drawn.forEach(draw);

  // --- legend and views: buttons, so that the keyboard reaches them and they wrap on a phone
  const button = (label, pressed, act) => {
    const made = document.createElement("button");
    made.type = "button";
    made.append(label);
    made.setAttribute("aria-pressed", String(pressed));
    made.addEventListener("click", () => act(made));
    return made;
  };
  const swatch = (trace) => {
    const mark = document.createElement("i");
    const paint = (trace.meta && trace.meta.swatch) ||
      (trace.line && trace.line.color) || (trace.marker && trace.marker.color) || trace.fillcolor || "@a";
    const name = (Array.isArray(paint) ? paint[0] : paint).slice(1).split("/")[0];
    mark.className = "swatch c-" + name;
    if (trace.line && trace.line.dash && trace.line.dash !== "solid") mark.classList.add("dashed");
    else if (/^lines/.test(trace.mode ?? "") && !trace.fill && !trace.stackgroup) mark.classList.add("stroke");
    else if (trace.mode === "markers") mark.classList.add("dot");
    return mark;
  };
  const legend = (state) => {
    const place = state.element.parentElement.querySelector(".legend");
    const shown = state.figure.traces.filter((trace) => trace.name && trace.showlegend !== false);
    if (shown.length < 2) return;
    for (const trace of shown) {
      const key = trace.legendgroup ?? trace.name;
      const item = button("", true, (self) => {
        state.hidden.has(key) ? state.hidden.delete(key) : state.hidden.add(key);
        self.setAttribute("aria-pressed", String(!state.hidden.has(key)));
        draw(state);
      });
      item.append(swatch(trace), trace.name);
      item.title = "Show or hide " + trace.name;
      place.append(item);
    }
  };
  const views = (state) => {
    const place = state.element.parentElement.querySelector(".views");
    const made = state.figure.views.map((view, i) =>
      button(view.label, i === 0, () => {
        state.view = i;
        made.forEach((other, j) => other.setAttribute("aria-pressed", String(i === j)));
        draw(state);
      }));
    place.append(...made);
  };

  // --- the chart library is stored compressed
  const unpack = async () => {
    const packed = document.getElementById("plotly");
    const bytes = Uint8Array.from(atob(packed.textContent.trim()), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
    packed.remove();
    return window.Plotly;
  };

  const charts = async () => {
    const data = document.getElementById("figures");
    if (!data) return;
    if (typeof DecompressionStream === "undefined") {
      document.body.classList.add("no-charts"); // the tables hold the same numbers
      document.querySelectorAll("details.data").forEach((details) => { details.open = true; });
      return;
    }
    Plotly = await unpack();
    for (const figure of JSON.parse(data.textContent)) {
      const element = document.getElementById("chart-" + figure.id);
      const state = { element, figure, hidden: new Set(), view: 0 };
      drawn.set(figure.id, state);
      views(state);
      legend(state);
      await draw(state);
      element.classList.add("drawn");
    }
    narrow.addEventListener("change", redraw);
  };

  // --- theme
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const toggle = document.getElementById("theme");
  const named = () => { toggle.textContent = isDark() ? "Light" : "Dark"; };
  toggle.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try {
      localStorage.setItem("paceline-report-theme", root.dataset.theme);
    } catch {
      // not remembered, then
    }
    named();
    redraw();
  });
  dark.addEventListener("change", () => { named(); redraw(); });
  named();

  // --- paper is white, and as wide as paper
  let before = null;
  addEventListener("beforeprint", () => {
    before = root.dataset.theme ?? null;
    root.dataset.theme = "light";
    printing = true;
    redraw();
  });
  addEventListener("afterprint", () => {
    if (before === null) delete root.dataset.theme;
    else root.dataset.theme = before;
    printing = false;
    redraw();
  });

  // --- copy a command
  document.querySelectorAll("button.copy").forEach((made) => {
    if (!navigator.clipboard) return;
    made.hidden = false;
    made.addEventListener("click", async () => {
      await navigator.clipboard.writeText(made.parentElement.querySelector("pre").textContent);
      made.textContent = "Copied";
      setTimeout(() => { made.textContent = "Copy"; }, 1500);
    });
  });

  charts().then(() => document.body.classList.add("ready"));
})();
