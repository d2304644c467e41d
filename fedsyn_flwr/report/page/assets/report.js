"use strict";
// Sorting, theme, and drawing what the page's JSON describes. Everything else is HTML or Plotly's.
(() => {
  const root = document.documentElement, byId = (id) => document.getElementById(id);
  const plots = [...document.querySelectorAll(".plot")];
  const recall = () => { try { return localStorage.getItem("fedsyn-theme"); } catch { return null; } };
  const keep = (name) => { try { localStorage.setItem("fedsyn-theme", name); } catch { /* file: may forbid it */ } };

  function themed() {
    const css = getComputedStyle(root), of = (name) => css.getPropertyValue(name).trim();
    const axis = { gridcolor: of("--grid"), linecolor: of("--line"), zerolinecolor: of("--line") };
    return { ink: of("--ink"), page: of("--page"), axis };
  }

  function layout(own, width) {
    const { ink, page, axis } = themed(), phone = width < 480;
    const full = { xaxis: { automargin: true, ...axis, ...own.xaxis }, yaxis: { automargin: true, ...axis, ...own.yaxis } };
    return { ...own, ...full, paper_bgcolor: page, plot_bgcolor: page, font: { color: ink, size: 13 },
      hoverlabel: { bgcolor: page, bordercolor: ink, font: { color: ink } }, margin: { l: 55, r: 10, t: 10, b: 50 },
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", font: { size: phone ? 11 : 12 } }, autosize: true };
  }

  function drawAll() {
    for (const plot of plots) {
      const { data, layout: own } = JSON.parse(byId("data-" + plot.dataset.chart).textContent);
      if (plot.dataset.chart.startsWith("accuracy-")) {
        const shown = new Set([...document.querySelectorAll(".group:checked")].map((box) => Number(box.value)));
        for (const trace of data) trace.visible = shown.has(trace.meta);
        own.showlegend = false;
        own.xaxis.type = byId("log-x").checked ? "log" : "linear";
        own.yaxis.type = byId("log-y").checked ? "log" : "linear";
      }
      if (own.yaxis?.type === "category") plot.style.height = 150 + 45 * data[0].y.length + "px";
      Plotly.react(plot, data, layout(own, plot.clientWidth), { responsive: true, displaylogo: false, displayModeBar: false });
    }
  }

  function theme(name) {
    root.dataset.theme = name;
    byId("theme").textContent = name === "dark" ? "Light colours" : "Dark colours";
    drawAll();
  }

  function sortable(table) {
    const body = table.tBodies[0];
    const value = (row, i) => row.cells[i].dataset.value ?? row.cells[i].textContent.trim();
    [...table.tHead.rows[0].cells].forEach((head, i) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const rows = [...body.rows].sort((a, b) => compare(value(a, i), value(b, i), down ? -1 : 1));
        body.append(...rows);
      });
    });
  }

  function compare(a, b, sign) {
    const none = (x) => x === "" || x === "—";
    if (none(a) || none(b)) return none(a) - none(b); // what is missing stays last
    const x = Number(a), y = Number(b);
    return sign * (Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b, "en", { numeric: true }) : x - y);
  }

  document.querySelectorAll("table.sortable").forEach(sortable);
  document.querySelectorAll(".controls input").forEach((box) => box.addEventListener("change", drawAll));
  byId("theme").hidden = byId("print").hidden = false;
  byId("theme").addEventListener("click", () => {
    const name = root.dataset.theme === "dark" ? "light" : "dark";
    keep(name);
    theme(name);
  });
  byId("print").addEventListener("click", () => window.print());
  let before = "light";
  window.addEventListener("beforeprint", () => { before = root.dataset.theme; theme("light"); });
  window.addEventListener("afterprint", () => theme(before));
  theme(recall() ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
})();
