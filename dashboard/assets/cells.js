/* Cells of the list of runs. Text goes through React, so names are escaped. */
const cells = (window.dashAgGridComponentFunctions = window.dashAgGridComponentFunctions || {});

cells.RunLink = ({ data }) =>
  React.createElement("a", { href: data.href, className: "run-link" },
    React.createElement("span", { className: "strong" }, data.workload || data.name),
    data.workload ? React.createElement("small", { title: data.name }, data.name) : null);

cells.RunVerdict = ({ data }) =>
  React.createElement("span", { className: "run-verdict" },
    data.verdict ? React.createElement("span", { className: `verdict verdict-${data.tone}` }, data.verdict) : null,
    React.createElement("span", { className: "run-headline", title: data.headline }, data.headline));

cells.RunSpeedup = ({ data }) => React.createElement("span", null, data.speedup === null ? "–" : data.speedup_text);

cells.RunArms = ({ value }) => React.createElement("span", { className: "run-arms", title: value }, value);

const tones = { measured: "good", emulated: "warn", simulated: "warn", complete: "plain", incomplete: "bad" };
cells.RunBadge = ({ value }) =>
  React.createElement("span", { className: `badge badge-${tones[value] || "bad"}` }, value);
