// What pages do beyond HTML: live parts, selection and keys. Every page works without it.
"use strict";

const one = (selector, within = document) => within.querySelector(selector);
const all = (selector, within = document) => [...within.querySelectorAll(selector)];

// -- live parts: they are replaced in place, so scrolling, focus and selection stay ---------------

// The milliseconds that an answer may take, and that a page waits at most before it asks again.
const LONGEST = 10000;

// A page asks for itself anew while its tab is visible, and more rarely if an answer takes long.
function follow() {
  const live = one("#live");
  let timer = null;
  const update = async () => {
    clearTimeout(timer);
    if (document.hidden) return;
    const began = performance.now();
    let works = false;
    try {
      // Without a limit, a connection on which nothing comes would leave "live" for ever.
      const signal = AbortSignal.timeout(LONGEST);
      const headers = { accept: "text/html", "x-live": "1" };
      const answer = await fetch(location.href, { headers, signal });
      const found = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (answer.ok && !answer.redirected) {
        replace(found);
        works = !one("#problem", found).textContent.trim();
      }
    } catch { /* the next time may work */ }
    live.textContent = works ? "live" : "not up to date";
    clearTimeout(timer);
    timer = setTimeout(update, Math.min(LONGEST, Math.max(2000, 10 * (performance.now() - began))));
  };
  document.addEventListener("visibilitychange", update);
  live.hidden = false;
  timer = setTimeout(update, 2000);
}

function replace(found) {
  for (const part of all("[data-live]")) {
    const next = found.getElementById(part.id);
    if (!next || next.innerHTML === part.innerHTML || part.contains(document.activeElement)) continue;
    part.innerHTML = next.innerHTML;
  }
  const rows = one("[data-rows]"), next = one("[data-rows]", found), news = one("#news");
  if (rows && next && news) news.hidden = rows.dataset.rows === next.dataset.rows;
}

// -- selection ------------------------------------------------------------------------------------

function select() {
  const form = one("#letters"), bulk = one("#bulk");
  if (!form || !bulk) return;
  const ticks = all("input[name=id]", form), every = one("#all");
  const show = () => {
    const count = ticks.filter((each) => each.checked).length;
    one("#selected").textContent = count ? `${count} selected:` : "Selected:";
    for (const each of all("button", bulk)) each.disabled = !count;
    every.checked = count > 0 && count === ticks.length;
    every.indeterminate = count > 0 && count < ticks.length;
  };
  every.hidden = false;
  every.addEventListener("change", () => { for (const each of ticks) each.checked = every.checked; show(); });
  form.addEventListener("change", show);
  show();
}

// -- keys -----------------------------------------------------------------------------------------

function move(step) {
  const rows = all("table.rows").at(-1);
  const found = rows ? all("tbody tr", rows).filter((each) => one("a", each)) : [];
  if (!found.length) return;
  const at = found.findIndex((each) => each.classList.contains("at"));
  const next = found[Math.min(found.length - 1, Math.max(0, at < 0 ? 0 : at + step))];
  found[at]?.classList.remove("at");
  next.classList.add("at");
  one("a", next).focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
}

const KEYS = {
  "/": () => one("#filter")?.focus(),
  "j": () => move(1),
  "k": () => move(-1),
  "x": () => one("tr.at input[name=id]")?.click(),
  // What is selected is meant, and only without a selection all that the page is about.
  "r": () => (one("#bulk button:enabled") ?? one("[data-key=r]"))?.click(),
  "u": () => one("[data-key=u]")?.click(),
  "?": () => one("#keys").showModal(),
  "go": () => { location.href = "./"; },
  "gj": () => { location.href = "jobs"; },
};

let prefix = "";
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input:not([type=checkbox]), select, dialog");
  if (event.key === "Escape" && typing) { event.target.blur(); return; }
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const action = KEYS[prefix + event.key] ?? KEYS[event.key];
  prefix = event.key === "g" && !prefix ? "g" : "";
  if (!action) return;
  event.preventDefault();
  action();
});

if (all("[data-live]").length > 1) follow();  // every page has that for problems
select();
