const value = cell => "v" in cell.dataset ? Number(cell.dataset.v) : cell.textContent;
const compare = (a, b, sign) => typeof a !== typeof b ? (typeof a === "number" ? -1 : 1)
  : sign * (typeof a === "number" ? a - b : a.localeCompare(b, "en", {numeric: true}));
for (const head of document.querySelectorAll("th")) head.firstChild.addEventListener("click", () => {
  const sign = head.ariaSort === "ascending" ? -1 : 1, body = head.closest("table").tBodies[0];
  const key = row => value(row.cells[head.cellIndex]);
  for (const other of head.parentElement.cells) other.ariaSort = null;
  head.ariaSort = sign === 1 ? "ascending" : "descending";
  body.append(...[...body.rows].sort((a, b) => compare(key(a), key(b), sign)));
});
