(() => {
  const parts = (page) => [...page.querySelectorAll("#opening, #contents, main > section")];
  const texts = (list) => Object.fromEntries(list.map((part) => [part.id, part.outerHTML]));
  let shown = texts(parts(document)); // as the server sent them
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

  let sorted = null, words = "";
  const prepare = () => {
    const table = document.querySelector("#trials table");
    if (!table) return;
    const body = table.tBodies[0], rows = [...body.rows], heads = [...table.tHead.rows[0].cells];
    const contents = rows.map((row) => row.textContent.toLowerCase());
    const value = (row, column) => {
      const text = row.cells[column].dataset.value ?? row.cells[column].textContent;
      return text === "" ? null : isNaN(text) ? text.toLowerCase() : Number(text);
    };
    const sort = (column, order) => {
      const sign = order === "ascending" ? 1 : -1;
      sorted = [column, order];
      heads.forEach((head, place) => head.setAttribute("aria-sort", place === column ? order : "none"));
      body.append(...[...rows].sort((a, b) => {
        const x = value(a, column), y = value(b, column);
        if (x === null || y === null) return (x === null) - (y === null);
        return sign * (x < y ? -1 : x > y ? 1 : 0);
      }));
    };
    heads.forEach((head, column) => head.addEventListener("click", () => {
      const first = head.dataset.first || "ascending", second = first === "ascending" ? "descending" : "ascending";
      sort(column, head.getAttribute("aria-sort") === first ? second : first);
    }));
    if (sorted) sort(...sorted);
    const box = document.getElementById("filter"), count = document.getElementById("count");
    const filter = () => {
      words = box.value;
      const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
      let visible = 0;
      rows.forEach((row, i) => { row.hidden = !wanted.every((word) => contents[i].includes(word)); visible += !row.hidden; });
      count.textContent = visible === rows.length ? `${visible} candidates` : `${visible} of ${rows.length} candidates`;
    };
    box.value = words;
    box.closest(".filter").hidden = false;
    box.addEventListener("input", filter);
    filter();
  };
  prepare();

  // A page of `headhunt watch` reads itself again, and replaces the parts that changed.
  const live = document.getElementById("live"), main = document.querySelector("main");
  const follow = async () => {
    const answer = await fetch(location.href).catch(() => null);
    live.textContent = answer?.ok ? "live" : "not reached: is headhunt watch running?";
    if (!answer?.ok) return;
    const fresh = parts(new DOMParser().parseFromString(await answer.text(), "text/html")), sent = texts(fresh);
    const changed = fresh.filter((part) => shown[part.id] !== sent[part.id]);
    const typing = document.activeElement.id === "filter";
    for (const part of changed) {
      const before = document.getElementById(part.id);
      const open = [...(before?.querySelectorAll("details") || [])].map((details) => details.open);
      part.querySelectorAll("details").forEach((details, number) => { details.open = open[number] || false; });
      before?.replaceWith(part);
    }
    if (Object.keys(sent).join() !== Object.keys(shown).join()) {
      const sections = fresh.filter((part) => part.matches("section"));
      main.replaceChildren(...sections.map((part) => document.getElementById(part.id) || part));
    }
    shown = sent;
    if (changed.some((part) => part.id === "trials")) prepare();
    if (typing) document.getElementById("filter").focus();
  };
  const repeat = () => follow().finally(() => setTimeout(repeat, 2000));
  if (live) repeat();
})();
