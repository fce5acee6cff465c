"use strict";
(() => {
  const run = JSON.parse(document.getElementById("data").textContent);
  const rows = (columns) => (columns[Object.keys(columns)[0]] || []).map((_, i) =>
    Object.fromEntries(Object.entries(columns).map(([key, column]) => [key, column[i]])));
  const trials = rows(run.trials).map((row, number) => ({ number, ...row }));
  const axes = run.parameters.filter((axis) => !axis.is_constant);
  const maximises = run.summary.direction === "max";
  const isBetter = (a, b) => (maximises ? a > b : a < b);
  const figureName = run.objectives.length ? run.objectives[0].name
    : run.summary.figure_of_merit === "value" || !run.summary.figure_of_merit ? "figure of merit"
    : run.summary.figure_of_merit;
  const figureText = figureName === "figure of merit" ? "the figure of merit" : figureName;
  const figureOf = (trial) => trial.figure ?? trial.so_far;
  const complete = trials.filter((trial) => trial.state === "complete" && trial.figure !== null);
  const hasInfeasible = trials.some((trial) => trial.state === "infeasible");
  const measured = trials.filter((trial) => figureOf(trial) !== null);
  const best = run.summary.best ? trials[run.summary.best.trial] : null;
  const ranked = [...complete].sort((a, b) => (maximises ? b.figure - a.figure : a.figure - b.figure));
  const byNumber = (a, b) => a.number - b.number;

  // ---------------------------------------------------------------- texts

  /** Plotly reads a few tags in its texts; names of users are no tags. */
  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const cut = (text, most = 40) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
  const number = (value, digits = 5) => (value === null || value === undefined ? "–"
    : Number.isInteger(value) && Math.abs(value) < 1e9 ? value.toLocaleString("en")
    : Math.abs(value) < 1e-3 || Math.abs(value) >= 1e9 ? String(Number(value.toPrecision(digits)).toExponential()).replace("e+", "e")
    : String(Number(value.toPrecision(digits))));
  const counted = (n, noun) => `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;
  function duration(seconds) {
    if (seconds === null || seconds === undefined) return "–";
    if (seconds < 100) return `${number(seconds, 3)} s`;
    const minutes = Math.round(seconds / 60);
    if (minutes < 100) return `${minutes} min`;
    const hours = Math.floor(minutes / 60);
    return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
  }
  const valueText = (axis, trial) => {
    const value = axis.x[trial.number];
    return value === null ? "–" : axis.labels ? axis.labels[value] : number(value, 4);
  };
  function hover(trial) {
    const figure = figureOf(trial);
    const how = trial.origin ? `${trial.state}, ${trial.origin}` : trial.state;
    const lines = [`<b>trial ${trial.number}</b> (${how})`, `${plain(figureName)}: ${number(figure)}`
      + (trial.std && trial.n_folds > 1 ? ` ± ${number(trial.std, 2)}` : "")
      + (trial.figure === null && figure !== null ? " so far" : "")];
    run.objectives.slice(1).forEach((objective, i) =>
      lines.push(`${plain(objective.name)}: ${number(trial.objectives[i + 1])}`));
    for (const axis of axes.filter((each) => each.x[trial.number] !== null).slice(0, 14)) {
      lines.push(`${plain(cut(axis.name, 30))}: ${plain(cut(valueText(axis, trial), 30))}`);
    }
    return lines.join("<br>");
  }
  const hovers = trials.map(hover);

  // ---------------------------------------------------------------- document

  function el(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value === true ? "" : value);
    }
    node.append(...children.filter((child) => child !== null));
    return node;
  }
  const main = document.getElementById("main");
  const links = document.getElementById("sections");
  function section(id, title, ...children) {
    const node = el("section", { id, "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title` }, title), ...children);
    main.append(node);
    links.append(el("li", {}, el("a", { href: `#${id}` }, title)));
    return node;
  }
  const paragraph = (...children) => el("p", {}, ...children);
  function table(heads, body, { attributes = {}, numbers = [] } = {}) {
    const of = (i) => (numbers.includes(i) ? { class: "number" } : {});
    return el("div", { class: "scroll" }, el("table", attributes,
      heads.length ? el("thead", {}, el("tr", {}, ...heads.map((head, i) => el("th", { scope: "col", ...of(i) }, head)))) : null,
      el("tbody", {}, ...body.map((cells) => el("tr", {}, ...cells.map((cell, i) =>
        el(i || heads.length ? "td" : "th", i || heads.length ? of(i) : { scope: "row" }, cell)))))));
  }
  const facts = (values) => table([], Object.entries(values), { attributes: { class: "facts" } });

  // ---------------------------------------------------------------- theme

  const root = document.documentElement;
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const themes = ["auto", "light", "dark"];
  let theme = "auto";
  try { theme = localStorage.getItem("nnlo-opt theme") || "auto"; } catch { /* a file may have no storage */ }
  const themeButton = document.getElementById("theme");
  function applyTheme() {
    root.dataset.theme = theme === "auto" ? (prefersDark.matches ? "dark" : "light") : theme;
    root.style.colorScheme = root.dataset.theme;
    themeButton.textContent = `Theme: ${theme}`;
  }
  themeButton.addEventListener("click", () => {
    theme = themes[(themes.indexOf(theme) + 1) % themes.length];
    try { localStorage.setItem("nnlo-opt theme", theme); } catch { /* as above */ }
    applyTheme();
    redraw();
  });
  prefersDark.addEventListener("change", () => { applyTheme(); redraw(); });
  applyTheme();
  const color = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
  const stateColor = (state) => color({ complete: "complete", failed: "failed", pruned: "pruned" }[state] || "other");

  // ---------------------------------------------------------------- figures

  const isCoarse = matchMedia("(pointer: coarse)").matches;
  const isPositive = measured.length > 0 && measured.every((trial) => figureOf(trial) > 0);
  /** True if figures of merit have a logarithmic axis. */
  let logFigure = false;
  /** Numbers of the trials that are chosen; null: all of them. */
  let chosen = null;
  let revision = 0;
  const figures = [];
  /** All buttons are named, as one of plotly's own sends the figure to a server. */
  const config = (buttons) => ({ responsive: true, displaylogo: false, scrollZoom: false,
    displayModeBar: isCoarse ? false : "hover", modeBarButtons: [["toImage"], ...buttons] });

  function axisStyle(title, more = {}) {
    const { title: _, ...rest } = more;
    return { title: { text: plain(title), font: { size: 12, color: color("muted") }, standoff: 8 }, gridcolor: color("grid"),
      linecolor: color("line"), tickcolor: color("line"), zeroline: false, automargin: true, exponentformat: "power",
      ...rest };
  }
  function logAxis(low, high) {
    if (high / low > 300) return { type: "log", dtick: 1 };
    const first = Math.floor(Math.log10(low));
    const decades = Array.from({ length: Math.ceil(Math.log10(high)) - first + 1 }, (_, i) => 10 ** (first + i));
    const steps = decades.flatMap((decade) => (high / low > 3 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9]).map((step) => step * decade));
    const ticks = steps.filter((value) => value >= low * 0.999 && value <= high * 1.001);
    return ticks.length > 1 ? { type: "log", tickvals: ticks, ticktext: ticks.map((value) => number(value, 3)) } : { type: "log", nticks: 4 };
  }
  function figureAxis(title = figureName) {
    if (!logFigure) return axisStyle(title);
    const values = measured.map(figureOf);
    return axisStyle(title, logAxis(Math.min(...values), Math.max(...values)));
  }
  function layout(more) {
    return { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 52, r: 12, t: 10, b: 40 },
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: color("text") }, hovermode: "closest",
      dragmode: isCoarse ? false : "select", showlegend: false, uirevision: `${logFigure}`, selectionrevision: revision,
      legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom", font: { color: color("muted") } },
      hoverlabel: { bgcolor: color("panel"), bordercolor: color("line"),
        font: { family: getComputedStyle(document.body).fontFamily, color: color("text") }, align: "left" },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: color("line"), activecolor: color("muted") }, ...more };
  }
  /** Dots of trials; those that are not chosen are faint. */
  function dots(list, x, y, { name = "", shade = "complete", size = 7, more = {} } = {}) {
    const marks = chosen ? { selectedpoints: list.flatMap((trial, i) => (chosen.has(trial.number) ? [i] : [])) } : {};
    return { type: "scatter", mode: "markers", name, x: list.map(x), y: list.map(y),
      customdata: list.map((trial) => trial.number), text: list.map((trial) => hovers[trial.number]),
      hovertemplate: "%{text}<extra></extra>", selected: { marker: { opacity: 0.95 } },
      unselected: { marker: { opacity: 0.07 } }, ...marks, ...more,
      marker: { color: color(shade), size, opacity: list.length > 300 ? 0.55 : 0.8, ...(more.marker || {}) } };
  }
  const bestDot = (x, y) => (best && best.figure !== null
    ? [dots([best], x, y, { name: "best", shade: "best", size: 11, more: { marker: { symbol: "diamond" } } })] : []);

  /** A figure that is drawn when it comes into view, and again when the theme or the choice of trials changes. */
  function figure(label, height, build, { title = null, caption = null, minWidth = 0 } = {}) {
    const plot = el("div", { class: "plot", style: `height:${height}px;min-width:${minWidth}px` });
    const node = el("figure", { "aria-label": label }, title === null ? null : el("h3", {}, title),
      minWidth ? el("div", { class: "scroll" }, plot) : plot, caption === null ? null : el("figcaption", {}, caption));
    const entry = { plot, build, isDrawn: false, isStale: true, isSeen: false };
    figures.push(entry);
    watcher.observe(plot);
    plot.entry = entry;
    return node;
  }
  const watcher = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      target.entry.isSeen = isIntersecting;
      if (isIntersecting && target.entry.isStale) draw(target.entry);
    }
  }, { rootMargin: "300px" });
  function draw(entry) {
    entry.isStale = false;
    const { data, layout: shape } = entry.build();
    Plotly.react(entry.plot, data, shape, config(data.some((trace) => trace.type === "parcoords") ? []
      : [["zoom2d", "pan2d", "select2d"], ["resetScale2d"]]));
    if (entry.isDrawn) return;
    entry.isDrawn = true;
    entry.plot.on("plotly_selected", (event) => {
      const numbers = event ? event.points.map((point) => point.customdata).filter((n) => Number.isInteger(n)) : [];
      if (numbers.length) choose(new Set(numbers), entry);
    });
    entry.plot.on("plotly_deselect", () => choose(null, entry));
    entry.plot.on("plotly_click", (event) => {
      const trial = event.points[0].customdata;
      if (Number.isInteger(trial)) choose(chosen && chosen.size === 1 && chosen.has(trial) ? null : new Set([trial]));
    });
    if (entry.onDrawn) entry.onDrawn();
  }
  function redraw(from = null) {
    revision += 1;
    for (const entry of figures.filter((each) => each !== from)) {
      entry.isStale = true;
      if (entry.isSeen) draw(entry);
    }
  }
  addEventListener("beforeprint", () => figures.filter((entry) => entry.isStale).forEach(draw));

  const chosenBar = document.getElementById("chosen");
  const afterChoice = [];
  function choose(numbers, from = null) {
    chosen = numbers;
    chosenBar.hidden = chosen === null;
    if (chosen) {
      const which = chosen.size === 1 ? `Trial ${[...chosen][0]}` : `${counted(chosen.size, "trial")} of ${trials.length}`;
      chosenBar.firstElementChild.textContent = `${which} chosen`;
    }
    redraw(from);
    afterChoice.forEach((action) => action());
  }
  chosenBar.lastElementChild.addEventListener("click", () => choose(null));
  addEventListener("keydown", (event) => { if (event.key === "Escape" && chosen) choose(null); });
  const isChosen = (trial) => chosen === null || chosen.has(trial.number);
  const trialButton = (n, text = `${n}`) =>
    el("button", { type: "button", "aria-label": `Choose trial ${n}`, onclick: () => choose(new Set([n])) }, text);

  // ---------------------------------------------------------------- overview

  document.getElementById("name").textContent = run.name;
  document.getElementById("state").textContent = [
    run.state.complete ? "Finished" : "Not finished", run.state.reason && `(${run.state.reason})`,
    run.state.model && `· ${run.state.model}`, run.state.is_search && run.state.hyper_opt && `· ${run.state.hyper_opt} search`,
    run.state.began && `· began ${run.state.began}`].filter(Boolean).join(" ");
  if (isPositive) {
    const values = complete.map((trial) => trial.figure);
    logFigure = !maximises && values.length > 0 && Math.max(...values) > 100 * Math.min(...values);
    const button = el("button", { type: "button", "aria-pressed": `${logFigure}`, onclick: () => {
      logFigure = !logFigure;
      button.setAttribute("aria-pressed", `${logFigure}`);
      button.textContent = `Log scale: ${logFigure ? "on" : "off"}`;
      redraw();
    } }, `Log scale: ${logFigure ? "on" : "off"}`);
    themeButton.before(button);
  }
  function overview() {
    const of = run.summary;
    const tile = (name, value, more) => el("div", {}, el("dt", {}, name), el("dd", {}, value, more ? el("small", {}, more) : null));
    const tiles = [
      tile(trials.length === 1 ? "trial" : "trials", trials.length.toLocaleString("en"), run.state.outcome),
      best ? tile(`best ${figureName}`, number(of.best.figure_of_merit, 6), `trial ${best.number}`
        + (best.n_folds > 1 ? `, ± ${number(best.std, 2)} over ${best.n_folds} folds` : "")) : null,
      of.best_expected ? tile("best expected", number(of.best_expected.figure_of_merit, 6),
        `trial ${of.best_expected.trial}, as figures are noisy`) : null,
      tile("time", duration(of.wall_s), of.n_starts > 1 ? `${of.n_starts} ${run.jobs ? "terms" : "starts"}` : null),
      of.block_utilization === null ? null : tile("blocks busy", `${Math.round(100 * of.block_utilization)} %`,
        run.jobs ? counted(run.jobs.length, "job") : counted(run.starts.at(-1).n_blocks, "block")),
      of.lost.n_ranks ? tile("lost", counted(of.lost.n_ranks, "rank"), null) : null,
      ...Object.entries(of.test || {}).map(([name, value]) => tile(`${name} on the test data`, number(value), null))];
    const node = section("overview", "Overview", el("dl", { class: "tiles" }, ...tiles.filter(Boolean)));
    if (!trials.length) node.append(paragraph("No trial has begun. The page fills as the run goes on: ",
      el("code", {}, "nnlo-opt report"), " writes it again."));
    else if (!best) node.append(paragraph(trials.every((trial) => trial.state === "failed")
      ? "Every trial has failed; the reasons are below." : `No ${hasInfeasible ? "feasible" : "complete"} trial yet.`));
    else if (axes.length) {
      node.append(el("h3", {}, `Best point: trial ${best.number}`), el("dl", { class: "point" }, ...run.parameters
        .filter((axis) => axis.x[best.number] !== null)
        .map((axis) => el("div", {}, el("dt", {}, axis.name), el("dd", {}, valueText(axis, best))))));
    }
    if (trials.length) node.append(paragraph("Point at a dot to see its trial. Click a dot, draw a box around "
      + "several, filter an axis, or choose a row of the table: all figures follow. Escape shows all trials again."));
  }

  // ---------------------------------------------------------------- progress

  function timeUnit(seconds) {
    const units = [["seconds", 1, 300], ["minutes", 60, 10800], ["hours", 3600, 345600], ["days", 86400, Infinity]];
    return units.find(([, , most]) => seconds <= most);
  }
  const lastS = run.starts.length ? Math.max(...run.starts.map((start) => start.last_s)) : 0;
  const [unitName, unitS] = timeUnit(lastS);
  function progress() {
    if (!measured.length) return;
    const bestLine = (list, x, until) => {
      const points = { x: [], y: [] };
      let top = null;
      for (const trial of list) {
        if (top === null || isBetter(trial.figure, top)) top = trial.figure;
        points.x.push(x(trial));
        points.y.push(top);
      }
      if (points.x.length && until > points.x.at(-1)) { points.x.push(until); points.y.push(top); }
      return { type: "scatter", mode: "lines", name: "best so far", ...points, hoverinfo: "skip",
        line: { shape: "hv", color: color("best"), width: 2 } };
    };
    const pruned = measured.filter((trial) => trial.state !== "complete");
    const build = (x, title, order, until) => () => ({
      data: [bestLine([...complete].sort(order), x, until),
        dots(pruned, x, figureOf, { name: `not complete${hasInfeasible ? ", or infeasible" : ""}`, shade: "pruned", size: 6, more: { marker: { symbol: "circle-open" } } }),
        dots(complete, x, figureOf, { name: "complete" }), ...bestDot(x, figureOf)].filter((trace) => trace.x.length),
      layout: layout({ xaxis: axisStyle(title), yaxis: figureAxis(), showlegend: true }) });
    const endOf = (trial) => trial.ends_s ?? Infinity;
    section("progress", "Best so far", paragraph(`${maximises ? "More" : "Less"} is better.`),
      el("div", { class: "grid wide" },
        figure("Figure of merit of each trial, with the best so far, by the number of the trial", 320,
          build((trial) => trial.number, "trial", byNumber, trials.length - 1)),
        figure("Figure of merit of each trial, with the best so far, by time", 320,
          build((trial) => (trial.ends_s === null ? null : trial.ends_s / unitS), `${unitName} since the start`,
            (a, b) => endOf(a) - endOf(b), lastS / unitS))));
  }

  // ---------------------------------------------------------------- parameters

  /** True for a numerical axis of whole numbers far apart, whose dots would hide each other. */
  const isStepped = (axis) => {
    const steps = [...new Set(axis.x)].filter((value) => value !== null).sort((a, b) => a - b);
    return !axis.labels && !axis.log && steps.every((value, i) => Number.isInteger(value)
      && (i === 0 || value - steps[i - 1] >= (steps.at(-1) - steps[0]) / 14));
  };
  const jitter = (trial) => (((trial.number + 1) * 0.618034) % 1 - 0.5) * 0.36;
  const isLog = (axis) => axis.log && axis.x.every((value) => value === null || value > 0);
  function axisOf(axis, title) {
    if (axis.labels) {
      return axisStyle(title, { tickvals: axis.labels.map((_, i) => i), ticktext: axis.labels.map((text) => plain(cut(text, 16))),
        range: [-0.5, axis.labels.length - 0.5] });
    }
    const values = axis.x.filter((value) => value !== null);
    const [low, high] = [axis.low ?? Math.min(...values), axis.high ?? Math.max(...values)];
    return axisStyle(title, isLog(axis) ? { ...logAxis(low, high), range: [Math.log10(low) - 0.03 * Math.log10(high / low),
      Math.log10(high) + 0.03 * Math.log10(high / low)] } : isStepped(axis) ? { tickvals: [...new Set(values)] } : { nticks: 6 });
  }
  const importanceOf = new Map((run.effects.effects || []).map((effect, rank) => [effect.name, rank]));
  const inOrder = [...axes].sort((a, b) => (importanceOf.get(a.name) ?? 1e6) - (importanceOf.get(b.name) ?? 1e6));
  function parameters() {
    if (!axes.length || !measured.length) return;
    const note = (axis) => {
      const n = measured.filter((trial) => axis.x[trial.number] !== null).length;
      return axis.condition ? `only if ${axis.condition}: ${counted(n, "trial")}` : null;
    };
    const cell = (axis) => {
      const x = (trial) => { const value = axis.x[trial.number]; return axis.labels || isStepped(axis) ? value + jitter(trial) : value; };
      const has = (list) => list.filter((trial) => axis.x[trial.number] !== null);
      const pruned = has(measured.filter((trial) => trial.state !== "complete"));
      return figure(`${axis.name} against the figure of merit`, 240, () => ({
        data: [dots(pruned, x, figureOf, { shade: "pruned", size: 5, more: { marker: { symbol: "circle-open" } } }),
          dots(has(complete), x, figureOf, { size: 6 }), ...(best && axis.x[best.number] !== null ? bestDot(x, figureOf) : [])],
        layout: layout({ xaxis: axisOf(axis, ""), yaxis: figureAxis(""), margin: { l: 44, r: 16, t: 6, b: 30 } }) }),
      { title: axis.name, caption: note(axis) });
    };
    section("parameters", "Parameters", paragraph(`Each parameter against ${figureText}`
      + `${importanceOf.size ? ", the most important first" : ""}. A diamond is the best trial`
      + `${measured.length > complete.length ? "; rings are trials that were not trained to the end" : ""}.`),
    el("div", { class: "grid" }, ...inOrder.map(cell)));
  }

  // ---------------------------------------------------------------- parallel coordinates

  function parallel() {
    const used = inOrder.filter((axis) => new Set(complete.map((trial) => axis.x[trial.number])).size > 1);
    if (complete.length < 2 || !used.length) return;
    const scaleOf = (axis) => (isLog(axis) ? Math.log10 : (value) => value);
    const dimension = (axis, list, index) => {
      const scale = scaleOf(axis);
      const all = axis.x.filter((value) => value !== null);
      let [low, high] = axis.labels ? [0, axis.labels.length - 1]
        : [scale(axis.low ?? Math.min(...all)), scale(axis.high ?? Math.max(...all))];
      let ticks = axis.labels ? axis.labels.map((label, i) => [i, cut(label, 12)])
        : isLog(axis) ? decades(low, high) : isStepped(axis) ? [...new Set(all)].map((value) => [value, number(value)]) : steps(low, high);
      const missing = low - 0.15 * (high - low || 1);
      if (list.some((trial) => axis.x[trial.number] === null)) { ticks = [[missing, "none"], ...ticks]; low = missing; }
      if (low === high) { low -= 1; high += 1; }
      return { name: `${index}`, label: plain(cut(axis.name, 18)), range: [low, high], tickvals: ticks.map(([at]) => at),
        ticktext: ticks.map(([, label]) => plain(label)),
        values: list.map((trial) => { const value = axis.x[trial.number]; return value === null ? missing : scale(value); }) };
    };
    const decades = (low, high) => {
      const whole = Array.from({ length: Math.floor(high + 1e-9) - Math.ceil(low - 1e-9) + 1 }, (_, i) => Math.ceil(low - 1e-9) + i);
      const inner = whole.filter((at) => Math.min(at - low, high - at) > 0.07 * (high - low));
      return [low, ...(inner.length ? inner : [(low + high) / 2]), high].map((at) => [at, number(10 ** at, 3)]);
    };
    const steps = (low, high) => Array.from({ length: 5 }, (_, i) => low + (i * (high - low)) / 4).map((at) => [at, number(at, 3)]);
    const result = { name: figureName, labels: null, condition: "", low: null, high: null, log: false,
      x: trials.map((trial) => trial.figure) };
    const shown = [...used, result];
    // The best lines lie on top.
    const place = new Map(ranked.map((trial, i) => [trial.number, i / Math.max(1, ranked.length - 1)]));
    const listed = () => [...ranked].reverse().filter(isChosen);
    let drawn = [];
    const node = figure("Parallel coordinates of all parameters", 380, () => {
      drawn = listed();
      result.log = logFigure;
      return { data: [{ type: "parcoords", uirevision: `${revision}`, dimensions: shown.map((axis, i) => dimension(axis, drawn, i)),
        line: { color: drawn.map((trial) => place.get(trial.number)), cmin: 0, cmax: 1,
          colorscale: [[0, color("best")], [0.2, color("accent")], [1, color("pruned")]] },
        labelangle: shown.length > 7 ? -12 : 0, unselected: { line: { color: color("grid"), opacity: 0.4 } },
        labelfont: { color: color("text"), size: 12 }, tickfont: { color: color("muted"), size: 11 },
        rangefont: { color: "rgba(0,0,0,0)", size: 1 } }],
      layout: layout({ margin: { l: 64, r: 56, t: 60, b: 20 } }) };
    }, { minWidth: Math.min(2000, shown.length * 92) });
    const entry = figures.at(-1);
    entry.onDrawn = () => entry.plot.on("plotly_restyle", () => {
      const limits = entry.plot.data[0].dimensions.filter((each) => each.constraintrange);
      const passes = (i) => limits.every(({ constraintrange, values }) => (Array.isArray(constraintrange[0])
        ? constraintrange : [constraintrange]).some(([low, high]) => values[i] >= low && values[i] <= high));
      choose(limits.length ? new Set(drawn.filter((_, i) => passes(i)).map((trial) => trial.number)) : null, entry);
    });
    section("parallel", "Parallel coordinates", paragraph("One line is one complete trial, the best in orange. Drag along an "
      + "axis to filter all figures by a range, or filter with the fields below."), node, filterForm(shown));
  }
  /** The same filter by keyboard. */
  function filterForm(shown) {
    const axisField = el("select", { "aria-label": "Parameter to filter by" }, ...shown.map((axis, i) => el("option", { value: i }, axis.name)));
    const values = el("span", { class: "bar" });
    const fields = () => {
      const axis = shown[axisField.value];
      values.replaceChildren(...(axis.labels
        ? [el("select", { "aria-label": "Category" }, ...axis.labels.map((label, i) => el("option", { value: i }, label)))]
        : ["from", "to"].map((word) => el("label", {}, `${word} `, el("input", { type: "number", step: "any", "aria-label": word })))));
    };
    axisField.addEventListener("change", fields);
    fields();
    return el("form", { class: "bar", onsubmit: (event) => {
      event.preventDefault();
      const axis = shown[axisField.value];
      const [first, second] = [...values.querySelectorAll("select, input")].map((field) => field.value);
      const passes = axis.labels ? (value) => value === Number(first)
        : (value) => (first === "" || value >= Number(first)) && (second === "" || value <= Number(second));
      choose(new Set(trials.filter((trial) => axis.x[trial.number] !== null && passes(axis.x[trial.number]) && isChosen(trial))
        .map((trial) => trial.number)));
    } }, el("span", {}, "Filter"), axisField, values, el("button", { type: "submit" }, "Filter"),
    el("button", { type: "button", onclick: () => choose(null) }, "Show all"));
  }

  // ---------------------------------------------------------------- importance, dependence

  function importance() {
    if (!axes.length || !trials.length) return;
    const { effects, why, n_trials: nTrials, explained, epoch } = run.effects;
    const after = epoch ? ` after epoch ${epoch}` : "";
    if (!effects) { section("importance", "Importance", paragraph(why)); return; }
    const quality = explained > 0
      ? `With each trial left out in turn, the surrogate explains ${Math.round(100 * explained)} % of the variance of the trials.`
      : "With each trial left out in turn, the surrogate explains nothing of the trials: do not rely on this section.";
    const listed = [...effects].reverse();
    const bars = figure("Importance of each parameter, with its uncertainty", 60 + 28 * listed.length, () => ({
      data: [{ type: "bar", orientation: "h", y: listed.map((_, i) => i), x: listed.map((effect) => effect.importance[1]),
        marker: { color: color("accent"), opacity: 0.85 }, hovertemplate: "%{text}<extra></extra>", textposition: "none",
        text: listed.map(({ name, importance: [low, middle, high] }) =>
          `${plain(name)}: ${number(middle, 2)} (${number(low, 2)} to ${number(high, 2)})`),
        error_x: { type: "data", symmetric: false, array: listed.map(({ importance: [, middle, high] }) => high - middle),
          arrayminus: listed.map(({ importance: [low, middle] }) => middle - low), color: color("text"), thickness: 1.2, width: 4 } }],
      layout: layout({ dragmode: false, bargap: 0.45, margin: { l: 90, r: 12, t: 6, b: 40 },
        xaxis: axisStyle("share of the variance", { range: [0, 1.02] }),
        yaxis: axisStyle("", { tickvals: listed.map((_, i) => i), ticktext: listed.map((effect) => plain(cut(effect.name, 28))), showgrid: false }) }) }));
    section("importance", "Importance", paragraph(`Share of the variance over the search space that remains if all other parameters are `
      + `known (Sobol's total index), by a Gaussian process of ${counted(nTrials, epoch ? "trial" : "complete trial")}. `
      + (epoch ? `Trials were pruned, so the section is about ${figureText}${after}, the last epoch that half of them have reached. ` : "") + `Lines hold nine of ten `
      + `functions that fit these trials. Shares overlap if parameters act together. ${quality}`), bars);
    const withCurve = effects.filter((effect) => effect.values.length > 1);
    const ends = withCurve.flatMap((effect) => effect.dependence.flat()).filter((value) => value !== null);
    const span = [Math.min(...ends), Math.max(...ends)];
    const cell = (effect) => {
      const axis = axes.find((each) => each.name === effect.name);
      const x = axis.labels ? effect.texts.map((_, i) => i) : effect.values;
      const part = (i) => effect.dependence.map((band) => band[i]);
      const lines = () => [
        { type: "scatter", mode: "lines", x, y: part(0), line: { width: 0 }, hoverinfo: "skip" },
        { type: "scatter", mode: "lines", x, y: part(2), line: { width: 0 }, fill: "tonexty", fillcolor: color("band"), hoverinfo: "skip" }];
      return figure(`Partial dependence of the figure of merit on ${effect.name}`, 220, () => ({
        data: [...(axis.labels ? [] : lines()), { type: "scatter", mode: axis.labels ? "markers" : "lines", x, y: part(1),
          line: { color: color("accent"), width: 2 }, marker: { color: color("accent"), size: 9 },
          text: effect.texts.map((text, i) => `${plain(cut(text, 30))}: ${number(effect.dependence[i][1], 4)}`
            + ` (${number(effect.dependence[i][0], 3)} to ${number(effect.dependence[i][2], 3)})`),
          hovertemplate: "%{text}<extra></extra>",
          error_y: axis.labels ? { type: "data", symmetric: false, array: effect.dependence.map((band) => band[2] - band[1]),
            arrayminus: effect.dependence.map((band) => band[1] - band[0]), color: color("accent"), thickness: 1.5, width: 5 } : {} }],
        layout: layout({ dragmode: false, xaxis: axisOf(axis, ""), yaxis: axisStyle("", { range: padded(span) }),
          margin: { l: 44, r: 16, t: 6, b: 30 } }) }), { title: effect.name });
    };
    const padded = ([low, high]) => [low - 0.06 * (high - low), high + 0.06 * (high - low)];
    const expected = `${figureName[0].toUpperCase()}${figureName.slice(1)}${after}`;
    if (withCurve.length) section("dependence", "Partial dependence", paragraph(`${expected} that the surrogate expects at each value, `
      + "the mean over all other parameters. The band holds nine of ten functions that fit the trials."), el("div", { class: "grid" }, ...withCurve.map(cell)));
  }

  // ---------------------------------------------------------------- curves, folds, objectives

  function curves() {
    const long = run.curves.filter(([, epochs]) => epochs.length > 1);
    if (!long.length) return;
    const line = (list, name, style, isFaint) => {
      const trace = { type: "scatter", mode: "lines", name, x: [], y: [], customdata: [], text: [], line: style, connectgaps: false,
        hovertemplate: "%{text}<br>epoch %{x}: %{y:.5g}<extra></extra>", ...(isFaint ? { hoverinfo: "skip", hovertemplate: null, showlegend: false } : {}) };
      for (const [trial, epochs, values] of list) {
        epochs.forEach((epoch, i) => {
          trace.x.push(epoch); trace.y.push(values[i]); trace.customdata.push(trial);
          if (!isFaint) trace.text.push(`<b>trial ${trial}</b> (${trials[trial].state})`);
        });
        trace.x.push(null); trace.y.push(null); trace.customdata.push(null); trace.text.push("");
      }
      return trace;
    };
    const states = [...new Set(trials.map((trial) => trial.state))];
    const last = Math.max(...long.map(([, epochs]) => epochs.at(-1)));
    const build = () => {
      const bright = chosen ? long.filter(([trial]) => chosen.has(trial)) : long;
      const faint = chosen ? long.filter(([trial]) => !chosen.has(trial)) : [];
      const opacity = Math.max(0.3, Math.min(0.85, 25 / bright.length));
      const traces = [line(faint, "", { color: color("faint"), width: 1 }, true)];
      for (const state of states) {
        const own = bright.filter(([trial]) => trials[trial].state === state && (chosen || trial !== best?.number));
        // Lines of one trace do not show through each other; lines of several do.
        const nParts = Math.min(12, Math.ceil(own.length / 8));
        for (let part = 0; part < nParts; part += 1) {
          const some = own.filter((_, i) => i % nParts === part);
          traces.push({ ...line(some, state, { color: stateColor(state), width: bright.length > 100 ? 0.7 : 1.2 }, false),
            opacity, legendgroup: state, showlegend: part === 0 });
        }
      }
      const top = bright.filter(([trial]) => trial === best?.number);
      traces.push(line(top, "best", { color: color("best"), width: 2.5 }, false));
      const values = bright.flatMap(([, , all]) => all).filter((value) => value !== null);
      const axis = logFigure && values.every((value) => value > 0)
        ? axisStyle(figureName, logAxis(Math.min(...values), Math.max(...values))) : axisStyle(figureName);
      return { data: traces.filter((trace) => trace.x.length), layout: layout({ dragmode: isCoarse ? false : "zoom", showlegend: true, xaxis: axisStyle("epoch", last > 15 ? { nticks: 12 } : { dtick: 1 }), yaxis: axis }) };
    };
    const isMean = run.folds.length ? " A line is the mean over the folds." : "";
    section("curves", "Learning curves", paragraph(`${figureName[0].toUpperCase()}${figureName.slice(1)} after each epoch.${isMean} Click a line to choose its trial.`),
      figure("Learning curves of all trials", 400, build));
  }

  function folds() {
    if (!run.folds.length) return;
    const of = new Map();
    for (const [trial, fold, value] of run.folds) of.set(trial, [...(of.get(trial) || []), [fold, value]]);
    const listed = ranked.filter((trial) => of.has(trial.number)).slice(0, 100);
    if (!listed.length) return;
    const build = () => {
      const span = { type: "scatter", mode: "lines", x: [], y: [], line: { color: color("line"), width: 2 }, hoverinfo: "skip" };
      const dotsOf = { trials: [], x: [], y: [], text: [] };
      listed.forEach((trial, i) => {
        const values = of.get(trial.number).map(([, value]) => value);
        span.x.push(i, i, null); span.y.push(Math.min(...values), Math.max(...values), null);
        for (const [fold, value] of of.get(trial.number)) {
          dotsOf.trials.push(trial); dotsOf.x.push(i); dotsOf.y.push(value);
          dotsOf.text.push(`fold ${fold}: ${number(value)}<br>${hovers[trial.number]}`);
        }
      });
      const at = new Map(listed.map((trial, i) => [trial.number, i]));
      const each = { ...dots(dotsOf.trials, () => 0, () => 0, { name: "fold", size: 6 }), x: dotsOf.x, y: dotsOf.y, text: dotsOf.text };
      const mean = dots(listed, (trial) => at.get(trial.number), (trial) => trial.figure, { name: "mean", shade: "best", size: 11,
        more: { marker: { symbol: "line-ew-open", line: { width: 2, color: color("best") } } } });
      return { data: [span, each, mean].map((trace, i) => ({ ...trace, showlegend: i > 0 })), layout: layout({ showlegend: true, yaxis: figureAxis(),
        xaxis: axisStyle("trials, the best first", listed.length > 40 ? { showticklabels: false }
          : { tickvals: listed.map((_, i) => i), ticktext: listed.map((trial) => `${trial.number}`), showgrid: false }) }) };
    };
    const first = listed.length < of.size ? ` The best ${listed.length} trials.` : "";
    section("folds", "Folds", paragraph(`Spread of each trial over its folds.${first}`), figure("Figure of merit of each fold of each trial", 320, build));
  }

  function pareto() {
    if (run.objectives.length < 2) return;
    const field = (label, initial) => el("select", { "aria-label": label, onchange: () => redraw() },
      ...run.objectives.map((objective, i) => el("option", { value: i, selected: i === initial }, objective.name)));
    const [across, up] = [field("Objective on the horizontal axis", 0), field("Objective on the vertical axis", 1)];
    const done = complete.filter((trial) => trial.objectives.every((value) => value !== null));
    const front = done.filter((trial) => trial.pareto);
    const build = () => {
      const [i, j] = [Number(across.value), Number(up.value)];
      const [x, y] = [(trial) => trial.objectives[i], (trial) => trial.objectives[j]];
      const ordered = [...front].sort((a, b) => x(a) - x(b));
      const isFlat = run.objectives.length === 2 && i !== j;
      return { data: [
        ...(isFlat ? [{ type: "scatter", mode: "lines", x: ordered.map(x), y: ordered.map(y), hoverinfo: "skip", showlegend: false,
          line: { shape: run.objectives[i].direction === "min" ? "hv" : "vh", color: color("best"), width: 1.5 } }] : []),
        dots(done.filter((trial) => !trial.pareto), x, y, { name: "dominated", shade: "pruned", size: 6 }),
        dots(front, x, y, { name: "Pareto set", shade: "best", size: 9 })],
      layout: layout({ showlegend: true, xaxis: axisStyle(`${run.objectives[i].name} (${run.objectives[i].direction})`, { nticks: 8 }),
        yaxis: axisStyle(`${run.objectives[j].name} (${run.objectives[j].direction})`) }) };
    };
    section("pareto", "Pareto set", paragraph(`${counted(front.length, "trial")} that no other trial beats in all objectives.`),
      run.objectives.length > 2 ? el("div", { class: "bar" }, across, "against", up) : null, figure("Pareto set of the objectives", 380, build));
  }

  // ---------------------------------------------------------------- pruning

  function pruning() {
    const pruned = trials.filter((trial) => trial.state === "pruned" || trial.state === "paused");
    const rule = run.again.pruner;
    if (!pruned.length && !rule) return;
    const full = Math.max(0, ...complete.map((trial) => trial.epochs), (rule && rule.max_epochs) || 0);
    const trained = (list) => list.reduce((sum, trial) => sum + trial.epochs, 0);
    const saved = full * pruned.length - trained(pruned);
    const begun = trials.filter((trial) => trial.epochs > 0);
    const states = [...new Set(begun.map((trial) => trial.state))];
    const rungs = [];
    if (rule && rule.name !== "median") for (let e = rule.min_epochs; e < full; e *= rule.eta) rungs.push(e);
    const ends = [...new Set(begun.map((trial) => trial.epochs))].sort((a, b) => a - b);
    const build = () => ({ data: states.map((state) => ({ type: "bar", name: state, x: ends.map(String),
      y: ends.map((epoch) => begun.filter((trial) => trial.state === state && trial.epochs === epoch && isChosen(trial)).length),
      marker: { color: stateColor(state) }, hovertemplate: `%{y} ${state} after epoch %{x}<extra></extra>` })),
    layout: layout({ barmode: "stack", showlegend: true, dragmode: false, bargap: 0.35, xaxis: axisStyle("epochs trained", { type: "category", showgrid: false }),
      yaxis: axisStyle("trials") }) });
    const all = trained(begun) + Math.max(0, saved);
    section("pruning", "Pruning", paragraph((rule ? `Pruner ${rule.name}. ` : "") + `${counted(pruned.length, "trial")} of ${trials.length} `
      + `did not get all epochs` + (full && saved > 0 ? `, which saved ${saved.toLocaleString("en")} of ${all.toLocaleString("en")} epochs `
      + `(${Math.round((100 * saved) / all)} %).` : ".")),
    el("div", { class: "grid wide" }, begun.length ? figure("Trials by the epochs that they were trained", 280, build) : null,
      rungs.length ? table(["rung: epoch", "trials that reached it", "trained longer"], rungs.map((epoch) => [`${epoch}`,
        `${begun.filter((trial) => trial.epochs >= epoch).length}`, `${begun.filter((trial) => trial.epochs > epoch).length}`]), { numbers: [0, 1, 2] }) : null));
  }

  // ---------------------------------------------------------------- blocks, staleness, failures

  function blocks() {
    const spans = rows(run.assignments);
    if (!spans.length) return;
    const hasTeams = new Set(spans.map((each) => each.block)).size < new Set(spans.map((each) => `${each.block}/${each.team}`)).size;
    const key = (each) => (hasTeams ? `block ${each.block}, team ${each.team}` : `block ${each.block}`);
    const lanes = [...new Map(spans.map((each) => [key(each), [each.block, each.team]])).entries()]
      .sort(([, a], [, b]) => b[0] - a[0] || b[1] - a[1]).map(([name]) => name);
    const lane = new Map(lanes.map((name, i) => [name, i]));
    const shades = { finished: "complete", failed: "failed", lost: "best", "under way": "other" };
    const kinds = [...new Set(spans.map((each) => each.how))];
    const height = Math.min(1400, 120 + lanes.length * (lanes.length > 40 ? 12 : 26));
    const build = () => ({ data: kinds.map((how) => {
      const own = spans.filter((each) => each.how === how);
      return { type: "bar", orientation: "h", name: how, y: own.map((each) => lane.get(key(each))), base: own.map((each) => each.from_s / unitS),
        x: own.map((each) => (each.to_s - each.from_s) / unitS), customdata: own.map((each) => each.trial), textposition: "none",
        text: own.map((each) => `${each.how}${run.folds.length ? `, fold ${each.fold}` : ""}, ${duration(each.to_s - each.from_s)}<br>${hovers[each.trial]}`),
        hovertemplate: "%{text}<extra></extra>", marker: { color: color(shades[how] || "pruned"),
          opacity: own.map((each) => (isChosen(trials[each.trial]) ? 0.9 : 0.12)), line: { color: color("page"), width: spans.length > 600 ? 0 : 1 } } };
    }), layout: layout({ barmode: "overlay", bargap: 0.25, showlegend: true, dragmode: isCoarse ? false : "zoom",
      xaxis: axisStyle(`${unitName} since the start`), yaxis: axisStyle("", { tickvals: lanes.map((_, i) => i), ticktext: lanes,
        showgrid: false, range: [-0.6, lanes.length - 0.4] }),
      shapes: run.starts.slice(1).map((start) => ({ type: "line", x0: start.at_s / unitS, x1: start.at_s / unitS, y0: 0, y1: 1, yref: "paper",
        line: { color: color("muted"), dash: "dot", width: 1 } })) }) });
    const lost = run.starts.flatMap((start, i) => Object.entries(start.lost).map(([block, ranks]) =>
      `${ranks.length === 1 ? "rank" : "ranks"} ${ranks.join(", ")} of block ${block}${run.starts.length > 1 ? ` in start ${i + 1}` : ""}`));
    const gap = run.summary.dispatch_gap_s;
    section("blocks", "Blocks", paragraph("Which block trained which trial at what time; a gap is idle time. "
      + (run.starts.length > 1 ? "A dotted line is a further start. " : "")
      + (gap.median === null ? "" : `Between two trials a team waited ${number(1000 * gap.median, 2)} ms (median). `)
      + (lost.length ? `Died: ${lost.join("; ")}.` : "")), figure("Timeline of the blocks", height, build));
  }

  function jobs() {
    if (!run.jobs) return;
    section("jobs", "Jobs", paragraph("Jobs that shared the run: the one that leads coordinates the others."),
      table(["job", "host", "ranks", "blocks", "joined", "for", "state", "trials"], run.jobs.map((job) => [`${job.job}`, job.host, `${job.n_ranks}`,
        job.blocks.length > 1 ? `${job.blocks[0]}–${job.blocks.at(-1)}` : `${job.blocks[0]}`, duration(job.joined_s), duration(job.here_s),
        job.state + (job.reason ? `: ${job.reason}` : ""),
        el("span", {}, ...[...new Set(job.running.map((each) => each.trial))].flatMap((n) => [trialButton(n), " "]))]), { numbers: [0, 2, 4, 5] }));
  }

  function staleness() {
    const { histogram, dropped, trials: each, n_read: nRead, n_folds: nFolds } = run.staleness;
    if (!histogram.some(([age]) => age > 0)) return;
    const n = histogram.reduce((sum, [, count]) => sum + count, 0);
    const mean = histogram.reduce((sum, [age, count]) => sum + age * count, 0) / n;
    const listed = each.map(([trial, ...rest]) => ({ ...trials[trial], age: rest }));
    section("staleness", "Staleness", paragraph(`Versions by which the central weights changed while an update was computed: `
      + `${number(mean, 3)} on average over ${n.toLocaleString("en")} updates`
      + `${dropped ? `; ${dropped.toLocaleString("en")} were dropped` : ""}.${nRead < nFolds ? ` From ${nRead} of ${nFolds} folds.` : ""}`),
    el("div", { class: "grid wide" },
      figure("Number of updates by their staleness", 260, () => ({ data: [{ type: "bar", x: histogram.map(([age]) => age), y: histogram.map(([, count]) => count),
        marker: { color: color("accent") }, hovertemplate: "staleness %{x}: %{y} updates<extra></extra>" }],
      layout: layout({ dragmode: false, xaxis: axisStyle("staleness", { nticks: 12 }), yaxis: axisStyle("updates") }) })),
      figure("Mean staleness of each trial", 260, () => ({ data: [dots(listed, (trial) => trial.number, (trial) => trial.age[0])],
        layout: layout({ xaxis: axisStyle("trial"), yaxis: axisStyle("mean staleness") }) }))));
  }

  function failures() {
    if (!run.failures.length) return;
    const most = 12;
    const body = run.failures.map(([reason, numbers]) => [`${numbers.length}`,
      el("span", {}, ...numbers.slice(0, most).flatMap((n) => [trialButton(n), " "]), numbers.length > most ? "… " : "",
        el("button", { type: "button", onclick: () => choose(new Set(numbers)) }, "choose all")), reason || "(no reason)"]);
    section("failures", "Failures", paragraph("Failed trials by their cause, with the reason of the first. ", el("code", {}, "nnlo-opt show RUN --trial N"), " prints the traceback of a trial."),
      table(["trials", "which", "reason"], body, { numbers: [0] }));
  }

  // ---------------------------------------------------------------- trials

  function trialTable() {
    if (!trials.length) return;
    const first = run.objectives.length ? run.objectives.map((objective, i) => [objective.name, (trial) => trial.objectives[i]])
      : [[figureName, figureOf]];
    const columns = [["trial", (trial) => trial.number], ["state", (trial) => trial.state], ...first,
      ...(trials.some((trial) => trial.n_folds > 1) ? [["±", (trial) => trial.std]] : []),
      ...(trials.some((trial) => trial.epochs > 0) ? [["epochs", (trial) => trial.epochs]] : []),
      ["time", (trial) => trial.time_s], ...axes.map((axis) => [axis.name, (trial) => axis.x[trial.number], axis])]
      .map(([head, value, axis]) => ({ head, value, axis }));
    const most = 200;
    let [by, isUp, isAll] = [columns[0], true, false];
    const text = ({ head, value, axis }, trial) => (axis ? valueText(axis, trial) : head === "state" ? trial.state
      : head === "time" ? duration(trial.time_s) : number(value(trial), 6));
    const isNumber = ({ head, axis }) => head !== "state" && !(axis && axis.labels);
    const body = el("tbody");
    const more = el("button", { type: "button", onclick: () => { isAll = true; fill(); } });
    const heads = columns.map((column) => el("th", { scope: "col", class: isNumber(column) ? "number" : "" }, el("button", { type: "button", onclick: () => {
      [by, isUp] = [column, by === column ? !isUp : true];
      fill();
    } }, column.head)));
    function fill() {
      heads.forEach((head, i) => head.setAttribute("aria-sort", columns[i] !== by ? "none" : isUp ? "ascending" : "descending"));
      const sorted = trials.filter(isChosen).sort((a, b) => {
        const [x, y] = [by.value(a), by.value(b)];
        if (x === null || x === undefined || y === null || y === undefined) return (x ?? null) === (y ?? null) ? byNumber(a, b) : (x ?? null) === null ? 1 : -1;
        return (isUp ? 1 : -1) * (typeof x === "string" ? x.localeCompare(y) : x - y) || byNumber(a, b);
      });
      const shown = isAll ? sorted : sorted.slice(0, most);
      body.replaceChildren(...shown.map((trial) => el("tr", { class: trial === best ? "on" : "" }, ...columns.map((column) =>
        el("td", { class: column.head === "state" && !column.axis ? `state-${trial.state}` : isNumber(column) ? "number" : "" },
          column === columns[0] ? trialButton(trial.number) : text(column, trial))))));
      more.hidden = shown.length === sorted.length;
      more.textContent = `Show all ${sorted.length.toLocaleString("en")} rows`;
    }
    fill();
    afterChoice.push(fill);
    section("trials", "Trials", paragraph("A button above a column sorts by it; the number of a trial chooses it."),
      el("div", { class: "tall", tabindex: 0, role: "region", "aria-label": "Table of trials" }, el("table", {}, el("thead", {}, el("tr", {}, ...heads)), body)), more);
  }

  // ---------------------------------------------------------------- again

  function again() {
    const { command, facts: known, versions, training, space } = run.again;
    const part = (title, values) => (Object.keys(values).length ? el("details", {}, el("summary", {}, title), facts(values)) : null);
    const code = el("code", {}, command);
    const copy = el("button", { type: "button", onclick: async () => {
      try { await navigator.clipboard.writeText(command); copy.textContent = "Copied"; }
      catch { getSelection().selectAllChildren(code); copy.textContent = "Marked: copy it by Ctrl-C"; }
    } }, "Copy the command");
    section("again", "Do it again", command ? paragraph("The command of the last start, below mpirun or srun:") : null,
      command ? el("pre", { tabindex: 0 }, code) : null, command ? el("div", { class: "bar" }, copy) : null, facts(known),
      part("Search space", space), part("Versions", versions), part("Training options", training));
  }

  for (const part of [overview, progress, parameters, parallel, importance, curves, folds, pareto, pruning, blocks, jobs, staleness, failures, trialTable, again]) part();

  const current = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries.filter((each) => each.isIntersecting)) {
      for (const link of links.querySelectorAll("a")) {
        if (link.hash === `#${target.id}` && isIntersecting) link.setAttribute("aria-current", "true");
        else link.removeAttribute("aria-current");
      }
    }
  }, { rootMargin: "-15% 0px -75% 0px" });
  main.querySelectorAll("section").forEach((node) => current.observe(node));
})();
