"use strict";
// All of this is a convenience. Without it, videos wait for a click, tables stay in their order, and links to
// tables lead to the list at the end of the page.

// Videos play while they are in sight, unless the reader asked for less motion.
if (!matchMedia("(prefers-reduced-motion: reduce)").matches) {
  const seen = new IntersectionObserver(entries => {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) target.play().catch(() => {});  // the browser may forbid it
      else target.pause();
    }
  });
  document.querySelectorAll("video").forEach(video => seen.observe(video));
}

document.querySelectorAll("a.csv").forEach(link => link.addEventListener("click", event => {
  event.preventDefault();
  document.getElementById(link.hash.slice(1)).click();
}));

// A click on a heading sorts by its column, another click in reverse. Cells without a number come last.
const number = cell => {
  const found = cell.textContent.replaceAll(",", "").match(/^\s*[-−]?\d+(\.\d+)?(e[-+]?\d+)?/);
  return found ? Number(found[0].replace("−", "-")) : null;
};
const compare = (a, b, numeric, sign) => {
  if (!numeric) return sign * a.textContent.localeCompare(b.textContent);
  const [x, y] = [number(a), number(b)];
  return x === null || y === null ? (x === null) - (y === null) : sign * (x - y);
};
document.querySelectorAll("thead th").forEach(heading => {
  const button = document.createElement("button");
  button.type = "button";
  button.append(...heading.childNodes);
  heading.append(button);
  button.addEventListener("click", () => {
    const ascending = heading.ariaSort !== "ascending";
    for (const other of heading.parentElement.children) other.removeAttribute("aria-sort");
    heading.ariaSort = ascending ? "ascending" : "descending";
    const body = heading.closest("table").tBodies[0], column = heading.cellIndex;
    const numeric = heading.classList.contains("number");
    body.append(...[...body.rows].sort((a, b) =>
      compare(a.cells[column], b.cells[column], numeric, ascending ? 1 : -1)));
  });
});
