/* Draws the figures of the one-file report: unpacks plotly.js, then draws each chart when it comes into view. */
(async () => {
  const root = document.documentElement;
  const read = (key) => { try { return localStorage.getItem(key); } catch { return null; } };
  const keep = (key, value) => { try { localStorage.setItem(key, value); } catch { /* private window */ } };
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const mode = () => root.dataset.mantineColorScheme;
  const show = (name) => { root.dataset.mantineColorScheme = name; };
  show(read("freescale-mode") || (dark.matches ? "dark" : "light"));

  const { figures, templates, config } = JSON.parse(document.getElementById("figures").textContent);
  const charts = [...document.querySelectorAll("[data-figure]")];

  const chosen = (card) => {
    const values = Object.fromEntries([...card.querySelectorAll("[data-choice]")].map((s) => [s.dataset.choice, s.value]));
    const first = JSON.parse(Object.keys(figures[card.id])[0]);
    return JSON.stringify(JSON.parse(card.dataset.options).map((name, i) => values[name] ?? first[i]));
  };
  // Python separates JSON items by ", "; compare parsed values, not spellings
  const find = (card) => Object.keys(figures[card.id]).find((name) => JSON.stringify(JSON.parse(name)) === chosen(card));

  const draw = (chart) => {
    const card = chart.closest("[data-options]");
    const name = find(card);
    for (const part of card.querySelectorAll("[data-variant]")) part.hidden = part.dataset.variant !== name;
    const figure = structuredClone(figures[card.id][name]);
    figure.layout.template = templates[mode()];
    chart.style.minHeight = `${figure.layout.height}px`;
    chart.dataset.drawn = mode();
    return Plotly.react(chart, figure.data, figure.layout, config);
  };

  try {
    const packed = Uint8Array.from(atob(document.getElementById("plotly-gz").textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
  } catch (error) {
    const notice = document.getElementById("no-charts");
    notice.textContent = `This browser could not draw the charts (${error.message}); the tables below hold the same numbers.`;
    notice.hidden = false;
    for (const details of document.querySelectorAll("details")) details.open = true;
    return;
  }

  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) { seen.unobserve(entry.target); draw(entry.target); }
  }, { rootMargin: "600px" });
  charts.forEach((chart) => seen.observe(chart));

  const redraw = () => charts.filter((chart) => chart.dataset.drawn && chart.dataset.drawn !== mode()).forEach(draw);
  document.getElementById("mode").addEventListener("click", () => {
    show(mode() === "dark" ? "light" : "dark");
    keep("freescale-mode", mode());
    redraw();
  });
  for (const select of document.querySelectorAll("[data-choice]"))
    select.addEventListener("change", () => draw(select.closest("[data-options]").querySelector("[data-figure]")));

  // On paper everything is light, drawn, and open
  let before = "light";
  window.addEventListener("beforeprint", () => {
    before = mode();
    show("light");
    charts.forEach(draw);
    for (const details of document.querySelectorAll(".card details")) details.open = details.querySelectorAll("tr").length <= 40;
  });
  window.addEventListener("afterprint", () => { show(before); redraw(); });
  document.body.dataset.ready = "yes";
})();
