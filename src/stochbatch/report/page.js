"use strict";
(() => {
const $ = (s, at = document) => [...at.querySelectorAll(s)];
const tip = document.getElementById("tip"), say = document.getElementById("say");
document.documentElement.classList.add("js");
// The text of a tooltip is the mark's label: mouse, touch, keyboard and screen reader get the same.
const words = (el) => (el.hasAttribute("aria-label") ? el : el.querySelector("[aria-label]")).getAttribute("aria-label");
function show(el, x, y) {
  tip.textContent = words(el);
  tip.hidden = false;
  const box = tip.getBoundingClientRect(), r = el.getBoundingClientRect();
  if (x === undefined) { x = Math.min(r.left + r.width / 2, r.left + 240); y = r.bottom - 8; }
  tip.style.left = Math.max(8, Math.min(x + 14, innerWidth - box.width - 16)) + "px";
  tip.style.top = (y + 18 + box.height > innerHeight ? y - box.height - 12 : y + 18) + "px";
}
const hide = () => { tip.hidden = true; };
const hit = (e) => e.target.closest && e.target.closest(".hot");
for (const type of ["pointermove", "pointerdown"])
  document.addEventListener(type, (e) => { const el = hit(e); if (el) show(el, e.clientX, e.clientY); else hide(); });
document.addEventListener("focusin", (e) => { const el = hit(e); if (el && el.matches(":focus-visible")) show(el); });
document.addEventListener("focusout", hide);
document.addEventListener("scroll", () => { // arrow keys scroll: the text stays with its mark
  const el = document.activeElement.closest(".hot");
  if (!tip.hidden && el && el.matches(":focus-visible")) show(el); else hide();
}, { passive: true });
// One tab stop per figure; arrow keys walk its marks, by row and column in a grid.
for (const figure of $("[data-walk]")) {
  const marks = $(".hot", figure), wide = Number(figure.dataset.walk);
  marks.forEach((el, i) => el.setAttribute("tabindex", i ? "-1" : "0"));
  figure.addEventListener("keydown", (e) => {
    if (e.key === "Escape") return hide();
    const at = marks.indexOf(document.activeElement);
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: wide, ArrowUp: -wide, Home: -at, End: marks.length - 1 - at }[e.key];
    if (at < 0 || by === undefined || !marks[at + by]) return;
    e.preventDefault();
    marks[at].setAttribute("tabindex", "-1");
    marks[at + by].setAttribute("tabindex", "0");
    marks[at + by].focus();
  });
}
// Tables are sorted by a click on a header, on a phone by the list above the cards.
function sort(table, column, down) {
  const body = table.tBodies[0], rows = [...body.rows], heads = $("thead th", table);
  const key = (row) => {
    const text = row.cells[column].textContent.trim().replace("\u2212", "-");
    if (text === "" || text === "\u2013") return "";
    const value = parseFloat(text.replace(/^<\s*/, "").replace(/(\d),(?=\d{3})/g, "$1"));
    return isNaN(value) ? text : value;
  };
  rows.sort((a, b) => {
    const x = key(a), y = key(b);
    if (x === "" || y === "") return (x === "") - (y === ""); // without a value: always last
    return (typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y))) * (down ? -1 : 1);
  });
  body.append(...rows);
  heads.forEach((th, i) => { if (i === column) th.setAttribute("aria-sort", down ? "descending" : "ascending"); else th.removeAttribute("aria-sort"); });
  say.textContent = `Sorted by ${heads[column].textContent}, ${down ? "descending" : "ascending"}.`;
}
for (const table of $("table.data")) {
  if (table.tBodies[0].rows.length < 2) continue;
  const pick = document.createElement("select"), label = document.createElement("label"), line = document.createElement("p");
  $("thead th", table).forEach((th, i) => {
    pick.add(new Option(th.textContent || "\u2013", i));
    if (!th.textContent) return;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.append(...th.childNodes);
    button.addEventListener("click", () => sort(table, i, th.getAttribute("aria-sort") === "ascending"));
    th.append(button);
  });
  pick.addEventListener("change", () => sort(table, Number(pick.value), false));
  label.append("Sort by ", pick);
  line.className = "pick";
  line.append(label);
  table.before(line);
}
})();
