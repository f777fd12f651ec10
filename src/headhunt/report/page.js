(() => {
  const root = document.documentElement, key = "headhunt-theme";
  const dark = matchMedia("(prefers-color-scheme: dark)"), button = document.getElementById("theme");
  const theme = () => root.dataset.theme || (dark.matches ? "dark" : "light");
  const name = () => { button.textContent = theme() === "dark" ? "Light" : "Dark"; };
  try { const saved = localStorage.getItem(key); if (saved) root.dataset.theme = saved; } catch { /* no storage */ }
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = theme() === "dark" ? "light" : "dark";
    try { localStorage.setItem(key, root.dataset.theme); } catch { /* the choice lasts for this visit only */ }
    name();
  });
  dark.addEventListener("change", name);
  name();

  const table = document.querySelector("#trials table");
  if (!table) return;
  const body = table.tBodies[0], rows = [...body.rows], heads = [...table.tHead.rows[0].cells];
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const value = (row, column) => {
    const text = row.cells[column].dataset.value ?? row.cells[column].textContent;
    return text === "" ? null : isNaN(text) ? text.toLowerCase() : Number(text);
  };
  heads.forEach((head, column) => head.addEventListener("click", () => {
    const first = head.dataset.first || "ascending", second = first === "ascending" ? "descending" : "ascending";
    const order = head.getAttribute("aria-sort") === first ? second : first, sign = order === "ascending" ? 1 : -1;
    heads.forEach((other) => other.setAttribute("aria-sort", other === head ? order : "none"));
    body.append(...[...rows].sort((a, b) => {
      const x = value(a, column), y = value(b, column);
      if (x === null || y === null) return (x === null) - (y === null);
      return sign * (x < y ? -1 : x > y ? 1 : 0);
    }));
  }));
  const box = document.getElementById("filter"), count = document.getElementById("count");
  const filter = () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    let visible = 0;
    rows.forEach((row, i) => { row.hidden = !words.every((word) => texts[i].includes(word)); visible += !row.hidden; });
    count.textContent = visible === rows.length ? `${visible} candidates` : `${visible} of ${rows.length} candidates`;
  };
  box.closest(".filter").hidden = false;
  box.addEventListener("input", filter);
  filter();
})();
