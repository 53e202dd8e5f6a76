"use strict";
// Asks once a second what is new, and puts the parts that have changed in their place. The parts
// are made by the server, which escapes all names and reasons.

const EVERY = 1000;
const token = new URLSearchParams(location.hash.slice(1)).get("token");
const wanted = new URLSearchParams(location.search).get("run");
const connection = document.querySelector("#connection");
const runs = document.querySelector("#runs");
const sections = [...document.querySelectorAll("[data-part]")];

function known() {
  return sections.map(one => `${one.dataset.part}:${one.dataset.mark}`).join(",");
}

function put(section, html, mark) {
  const scrolled = [...section.querySelectorAll(".wide")].map(one => one.scrollLeft);
  const focused = section.contains(document.activeElement) ? document.activeElement.id : "";
  section.innerHTML = html;
  section.dataset.mark = mark;
  section.querySelectorAll(".wide").forEach((one, n) => { one.scrollLeft = scrolled[n] || 0; });
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

function list(all, shown) {
  const text = JSON.stringify([all, shown]);
  if (runs.dataset.text === text) return;
  runs.dataset.text = text;
  runs.replaceChildren(...(all.length > 1 ? all : []).map(([name, state]) => {
    const link = document.createElement("a");
    link.href = `?run=${encodeURIComponent(name)}${location.hash}`;
    if (name === shown) link.setAttribute("aria-current", "page");
    const said = document.createElement("span");
    said.className = "faint";
    said.textContent = state;
    link.append(name, " ", said);
    return link;
  }));
}

async function look() {
  const query = new URLSearchParams({ known: known() });
  if (wanted) query.set("run", wanted);
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  const answer = await fetch(`api/run?${query}`, { headers });
  const news = await answer.json();
  if (!answer.ok) throw new Error(news.detail);
  document.title = `${news.title}: a run`;
  list(news.runs, news.run);
  for (const section of sections) {
    const part = news.parts[section.dataset.part];
    if (part) put(section, part.html, part.mark);
  }
}

async function forEver() {
  try {
    await look();
    connection.hidden = true;
  } catch (error) {
    const away = error instanceof TypeError;  // nobody listens any more
    const words = away ? "konsil watch has ended; this is what it saw last." : error.message;
    if (connection.hidden || connection.textContent !== words) connection.textContent = words;
    connection.hidden = false;
  }
  setTimeout(forEver, EVERY);
}

forEver();
