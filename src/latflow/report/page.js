"use strict";
// Sort a table by a column: numbers where the column holds numbers, else text.
const sortKey = (cell) => {
  const number = parseFloat(cell.textContent.replace(/[<,\s]/g, ""));
  return Number.isNaN(number) ? -Infinity : number;
};
for (const head of document.querySelectorAll("th")) {
  const sort = () => {
    const table = head.closest("table");
    const body = table.tBodies[0];
    const index = head.cellIndex;
    const isNumber = head.classList.contains("number");
    const first = isNumber ? "descending" : "ascending";
    const other = isNumber ? "ascending" : "descending";
    const order = head.getAttribute("aria-sort") === first ? other : first;
    for (const cell of table.tHead.rows[0].cells) cell.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", order);
    const sign = order === "ascending" ? 1 : -1;
    const compare = isNumber
      ? (a, b) => sortKey(a.cells[index]) - sortKey(b.cells[index])
      : (a, b) => a.cells[index].textContent.localeCompare(b.cells[index].textContent);
    body.append(...[...body.rows].sort((a, b) => sign * compare(a, b)));
  };
  head.tabIndex = 0;
  head.addEventListener("click", sort);
  head.addEventListener("keydown", (event) => {
    if (event.key === "Enter") sort();
  });
}
// What is wider or longer than its frame says so, while there is more to scroll to.
const frames = [...document.querySelectorAll(".scroll, .drawing")];
const tellMore = (frame) => {
  const isMoreRight = frame.scrollWidth - frame.clientWidth - frame.scrollLeft > 2;
  const isMoreBelow = frame.scrollHeight - frame.clientHeight - frame.scrollTop > 2;
  frame.classList.toggle("more-right", isMoreRight);
  frame.classList.toggle("more-below", isMoreBelow);
  const isScrolled = frame.scrollWidth - frame.clientWidth > 2 || frame.scrollHeight - frame.clientHeight > 2;
  const rows = frame.querySelectorAll("tbody tr").length;
  let hint = frame.nextElementSibling;
  if (!hint || !hint.classList.contains("more")) {
    if (!isScrolled) return;
    hint = document.createElement("p");
    hint.className = "more";
    frame.after(hint);
  }
  hint.hidden = !isScrolled;
  const ways = [isMoreRight ? "to the right" : "", isMoreBelow ? "below" : ""].filter(Boolean);
  hint.textContent = (rows ? `${rows} rows; ` : "") + (ways.length ? `scroll: more ${ways.join(" and ")}` : "scrolled to the end");
  frame.tabIndex = 0;
};
for (const frame of frames) {
  frame.addEventListener("scroll", () => tellMore(frame));
  new ResizeObserver(() => tellMore(frame)).observe(frame);
}
// A line over each spectrogram follows its sound; a click on the picture moves the sound.
for (const example of document.querySelectorAll(".example")) {
  const audio = example.querySelector("audio");
  const picture = example.querySelector(".picture");
  const drawing = picture.querySelector("svg");
  const cursor = example.querySelector(".cursor");
  const left = parseFloat(cursor.dataset.left) / 100;
  const width = parseFloat(cursor.dataset.width) / 100;
  const show = () => {
    if (!audio.duration) return;
    const box = drawing.getBoundingClientRect();
    const inset = box.left - picture.getBoundingClientRect().left;
    const share = left + (width * audio.currentTime) / audio.duration;
    cursor.style.left = `${inset + share * box.width}px`;
    cursor.style.display = "block";
    if (!audio.paused) requestAnimationFrame(show);
  };
  audio.addEventListener("play", show);
  audio.addEventListener("seeked", show);
  picture.addEventListener("click", (event) => {
    const box = drawing.getBoundingClientRect();
    const share = ((event.clientX - box.left) / box.width - left) / width;
    if (audio.duration && share >= 0 && share <= 1) audio.currentTime = share * audio.duration;
  });
}
// Buttons leave the examples of a section that have one kind of error.
for (const filter of document.querySelectorAll(".filter")) {
  const buttons = [...filter.querySelectorAll("button")];
  const examples = [...filter.closest("section").querySelectorAll(".example")];
  for (const button of buttons) {
    button.addEventListener("click", () => {
      const wanted = button.dataset.errors;
      for (const each of buttons) each.setAttribute("aria-pressed", String(each === button));
      for (const example of examples) {
        const has = (example.dataset.errors || "").split(" ").includes(wanted);
        example.hidden = wanted !== "" && !has;
        if (example.hidden) example.querySelector("audio").pause();
      }
    });
  }
}
// The contents mark the section in view.
const links = new Map([...document.querySelectorAll("nav a")].map((a) => [a.hash.slice(1), a]));
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    for (const link of links.values()) link.classList.remove("here");
    links.get(entry.target.id).classList.add("here");
  }
}, { rootMargin: "-10% 0px -75% 0px" });
for (const section of document.querySelectorAll("main > section")) watcher.observe(section);
