/* What the app does in the browser by itself: light and dark, choices of a card, templates of figures. */
window.dash_clientside = Object.assign({}, window.dash_clientside, {
  freescale: {
    flip: (clicks, mode) => {
      const root = document.documentElement;
      const next = clicks ? (mode === "dark" ? "light" : "dark") : window.freescaleMode;
      root.dataset.mantineColorScheme = next;
      // Only a choice is remembered; without one the app goes by the system
      if (clicks) try { localStorage.setItem("freescale-mode", next); } catch { /* private window */ }
      return [next, next];
    },

    draw: (figure, mode) => {
      if (!figure) return window.dash_clientside.no_update;
      const template = window.freescaleTemplates[mode || window.freescaleMode];
      return [{ ...figure, layout: { ...figure.layout, template } }, { height: `${figure.layout.height}px` }];
    },

    choose: (values, ids, state) => {
      const choices = { ...state.choices };
      ids.forEach((id, i) => { choices[id.name] = Array.isArray(values[i]) ? values[i].join(",") : values[i]; });
      const same = Object.keys(choices).every((name) => choices[name] === state.choices[name]);
      return same ? window.dash_clientside.no_update : { ...state, choices };
    },

    search: (text) => {
      const grid = dash_ag_grid.getApi("runs");
      grid.setGridOption("quickFilterText", text || "");
      return text ? `${grid.getDisplayedRowCount()} found` : "";
    },

    title: (title) => { document.title = title; return window.dash_clientside.no_update; },
  },
});
