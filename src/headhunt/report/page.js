(() => {
  const root = document.documentElement, key = "headhunt-theme";
  const dark = matchMedia("(prefers-color-scheme: dark)"), button = document.getElementById("theme");
  const theme = () => root.dataset.theme || (dark.matches ? "dark" : "light");
  const name = () => { button.textContent = theme() === "dark" ? "Light" : "Dark"; };
  try { const kept = localStorage.getItem(key); if (kept) root.dataset.theme = kept; } catch { /* not kept, then */ }
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = theme() === "dark" ? "light" : "dark";
    try { localStorage.setItem(key, root.dataset.theme); } catch { /* for this visit only */ }
    name();
  });
  dark.addEventListener("change", name);
  name();

  const table = document.querySelector("#trials table");
  if (!table) return;
  const body = table.tBodies[0], rows = [...body.rows], heads = [...table.tHead.rows[0].cells];
  const said = rows.map((row) => row.textContent.toLowerCase());
  const value = (row, column) => {
    const text = row.cells[column].dataset.value ?? row.cells[column].textContent;
    return text === "" ? null : isNaN(text) ? text.toLowerCase() : Number(text);
  };
  heads.forEach((head, column) => head.addEventListener("click", () => {
    const first = head.dataset.first || "ascending", other = first === "ascending" ? "descending" : "ascending";
    const order = head.getAttribute("aria-sort") === first ? other : first, sign = order === "ascending" ? 1 : -1;
    heads.forEach((one) => one.setAttribute("aria-sort", one === head ? order : "none"));
    body.append(...[...rows].sort((a, b) => {
      const x = value(a, column), y = value(b, column);
      if (x === null || y === null) return (x === null) - (y === null);
      return sign * (x < y ? -1 : x > y ? 1 : 0);
    }));
  }));
  const box = document.getElementById("filter"), count = document.getElementById("count");
  const filter = () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, i) => { row.hidden = !words.every((word) => said[i].includes(word)); shown += !row.hidden; });
    count.textContent = shown === rows.length ? `${shown} candidates` : `${shown} of ${rows.length} candidates`;
  };
  box.closest(".filter").hidden = false;
  box.addEventListener("input", filter);
  filter();
})();
