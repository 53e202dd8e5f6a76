// The page asks the API of the server it comes from, and nobody else. Nothing is stored but the
// token, in this tab.

const byId = (id) => document.getElementById(id);
const percent = (part) => `${(100 * part).toFixed(part > 0.0995 && part < 0.9995 ? 0 : 1)} %`;

let model = null;
let files = [];
let asking = null; // of the questions that are under way; a new one ends them
const panels = []; // the answer, and perhaps the one it is compared with
let images = []; // the planes of the file, which all answers share

// --- the server --------------------------------------------------------------------------------

const inAddress = new URLSearchParams(location.hash.slice(1)).get("token");
if (inAddress) {
  sessionStorage.setItem("token", inAddress);
  history.replaceState(null, "", location.pathname); // not for those who look at the screen
}

async function fetched(path, options = {}) {
  const token = sessionStorage.getItem("token");
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const response = await fetch(path, { ...options, headers });
  if (response.status === 401) byId("token-form").hidden = false;
  const said = await response.json().catch(() => ({ detail: `no answer (${response.status})` }));
  if (!response.ok) throw new Error(said.detail);
  return said;
}

async function begin() {
  try {
    model = (await fetched("api/models")).models[0];
  } catch (error) {
    return tellProblem(error);
  }
  byId("token-form").hidden = true;
  tellProblem(null);
  describe();
}

function describe() {
  const draws = model.labels.map((label) => label.name).join(", ");
  const what = model.targets === "masks" ? "marks" : "tells apart";
  byId("about").textContent = `${model.name}: ${what} ${draws}; learned at ${model.sites.join(", ")}.`;
  const from = model.provenance;
  byId("provenance").textContent = from.method
    ? `Method ${from.method}, ${from.rounds} rounds; it looks at ${model.image_size} × ${model.image_size} pixels.`
    : "";
  fill(byId("ask"), model.ask.map((who) => [who, nameOf(who)]));
  fill(byId("compare"), [["", "nobody"], ...model.ask.map((who) => [who, nameOf(who)])]);
  fill(byId("site"), [["", "all sites alike"], ...model.sites.map((site) => [site, site])]);
  byId("opacity-field").hidden = model.targets !== "masks";
}

function nameOf(who) {
  if (who === "auto") return model.selector ? "the super model's choice" : "the usual one";
  return who === "global" ? "the global model" : `the specialist of ${who}`;
}

function fill(select, choices) {
  select.replaceChildren(...choices.map(([value, text]) => new Option(text, value)));
}

// --- questions ---------------------------------------------------------------------------------

async function ask() {
  if (!files.length || !model) return;
  asking?.abort();
  const mine = (asking = new AbortController());
  const whom = [byId("ask").value, byId("compare").value].filter((who) => who);
  tellProblem(null);
  tell("asking …");
  try {
    const answers = [];
    for (const who of whom) answers.push(await answerOf(who, answers.length === 0, mine.signal));
    images = answers[0].images.map(picture);
    panels.length = 0;
    panels.push(...answers.map((answer) => new Panel(answer)));
    byId("panels").replaceChildren(...panels.map((panel) => panel.element));
    setPlanes(answers[0].planes.length);
    await draw();
    tell(summary(answers));
  } catch (error) {
    if (mine.signal.aborted) return;
    tell("");
    tellProblem(error);
  }
}

function answerOf(who, withImages, signal) {
  const form = new FormData();
  for (const file of files) form.append("files", file, file.name);
  form.append("ask", who);
  for (const id of ["site", "window", "view", "channel"]) {
    if (byId(id).value) form.append(id, byId(id).value);
  }
  const include = ["mask", "overlays", ...(withImages ? ["images"] : [])];
  const query = include.map((part) => `include=${part}`).join("&");
  return fetched(`api/predict?${query}`, { method: "POST", body: form, signal });
}

function summary(answers) {
  const said = answers.map((answer) => {
    const counts = new Map();
    for (const plane of answer.planes) counts.set(plane.asked, (counts.get(plane.asked) ?? 0) + 1);
    const several = answer.planes.length > 1;
    return [...counts].map(([who, n]) => (several ? `${who} (${n} planes)` : who)).join(", ");
  });
  return `${answers[0].file}: answered by ${said.join("; and by ")}.`;
}

// --- answers -----------------------------------------------------------------------------------

class Panel {
  constructor(answer) {
    this.answer = answer;
    this.overlays = answer.overlays.map(picture);
    this.element = byId("panel").content.firstElementChild.cloneNode(true);
    this.canvas = this.find("canvas");
    this.find(".notes").replaceChildren(...answer.notes.map((note) => item(note)));
    if (answer.mask) this.offer(answer.mask);
  }

  find(selector) {
    return this.element.querySelector(selector);
  }

  offer(mask) {
    const bytes = Uint8Array.from(atob(mask.base64), (letter) => letter.charCodeAt(0));
    const link = this.find(".download");
    link.href = URL.createObjectURL(new Blob([bytes], { type: mask.type }));
    link.download = mask.name;
    link.hidden = false;
    link.textContent = `Download ${mask.name}`;
  }

  async draw(number, opacity) {
    const plane = this.answer.planes[number];
    this.find("h2").textContent = `Answered by ${plane.asked}`;
    const warning = this.find(".warning");
    warning.hidden = !plane.unfamiliar;
    warning.textContent = "This image is like those of no site: look closely before you trust it.";
    this.showClass(plane);
    this.showStructures(plane);
    this.showLikes(plane);
    await this.paint(number, opacity);
    this.canvas.setAttribute("aria-label", this.inWords(plane, number));
  }

  inWords(plane, number) {
    const several = this.answer.planes.length > 1;
    const where = several ? `Plane ${number + 1} of ${this.answer.planes.length}` : this.answer.file;
    const marked = Object.entries(plane.shares).map(([name, part]) => `${name} ${percent(part)}`);
    return marked.length ? `${where}; marked: ${marked.join(", ")}` : `${where}; ${plane.label}`;
  }

  showClass(plane) {
    const line = this.find(".class");
    line.hidden = plane.label === null;
    line.textContent = plane.label === null ? "" : `${plane.label}: ${percent(plane.sure)}`;
  }

  showStructures(plane) {
    const lines = model.labels.map((label) => {
      const part = plane.shares[label.name] ?? plane.classes[label.name];
      const line = item(`${label.name} ${percent(part)}`);
      if (label.name in plane.shares) line.prepend(swatch(label.colour));
      return line;
    });
    this.find(".structures").replaceChildren(...lines);
  }

  showLikes(plane) {
    const likes = Object.entries(plane.likes);
    this.find("h3").hidden = likes.length === 0;
    this.find(".likes").replaceChildren(...likes.map(([site, part]) => bar(site, part)));
  }

  async paint(number, opacity) {
    const image = await images[number]();
    const overlay = this.overlays.length ? await this.overlays[number]() : null;
    const { canvas } = this;
    const tiny = Math.max(image.width, image.height) < 300;
    const zoom = tiny ? 4 : 1;
    canvas.width = image.width * zoom;
    canvas.height = image.height * zoom;
    canvas.classList.toggle("tiny", tiny);
    const [down, right] = this.answer.spacing ?? [1, 1];
    canvas.style.aspectRatio = `${image.width * right} / ${image.height * down}`;
    const context = canvas.getContext("2d");
    context.imageSmoothingEnabled = false;
    context.drawImage(image, 0, 0, canvas.width, canvas.height);
    if (!overlay) return;
    context.globalAlpha = opacity;
    context.drawImage(overlay, 0, 0, canvas.width, canvas.height);
    context.globalAlpha = 1;
  }
}

/** A PNG that is decoded when it is looked at for the first time. */
function picture(base64) {
  let waiting = null;
  return () => {
    waiting ??= (async () => {
      const image = new Image();
      image.src = `data:image/png;base64,${base64}`;
      await image.decode();
      return image;
    })();
    return waiting;
  };
}

function item(text) {
  const line = document.createElement("li");
  line.append(text);
  return line;
}

function swatch(colour) {
  const square = document.createElement("span");
  square.className = "swatch";
  square.style.background = colour;
  return square;
}

function bar(name, part) {
  const line = document.createElement("li");
  const cells = ["name", "bar", "part"].map((kind) => {
    const cell = document.createElement("span");
    cell.className = kind;
    return cell;
  });
  cells[0].textContent = name;
  cells[1].append(document.createElement("span"));
  cells[1].setAttribute("aria-hidden", "true");
  cells[1].firstChild.style.width = `${100 * part}%`;
  cells[2].textContent = percent(part);
  line.append(...cells);
  return line;
}

// --- what is looked at -------------------------------------------------------------------------

function setPlanes(count) {
  const slider = byId("plane");
  const changed = Number(slider.max) !== count;
  slider.max = count;
  if (changed) slider.value = Math.ceil(count / 2);
  byId("plane-field").hidden = count < 2;
}

let drawing = Promise.resolve();
function draw() {
  drawing = drawing.then(async () => {
    const slider = byId("plane");
    byId("plane-number").textContent = `${slider.value} of ${slider.max}`;
    const opacity = byId("opacity").value / 100;
    for (const panel of panels) await panel.draw(slider.value - 1, opacity);
  });
  return drawing;
}

function tell(text) {
  byId("status").textContent = text;
}

function tellProblem(error) {
  byId("problem").textContent = error ? error.message : "";
}

// --- what a person does ------------------------------------------------------------------------

function choose(chosen) {
  files = [...chosen];
  if (!files.length) return;
  const names = files.length === 1 ? files[0].name : `${files.length} files`;
  byId("chosen").textContent = names;
  byId("plane").max = 0; // another file begins in its middle
  ask();
}

async function dropped(items) {
  const entries = [...items].map((one) => one.webkitGetAsEntry?.()).filter((entry) => entry);
  return (await Promise.all(entries.map(within))).flat();
}

async function within(entry) {
  if (entry.isFile) return [await new Promise((give, fail) => entry.file(give, fail))];
  const reader = entry.createReader();
  const found = [];
  for (;;) {
    const some = await new Promise((give, fail) => reader.readEntries(give, fail));
    if (!some.length) break;
    found.push(...some);
  }
  return (await Promise.all(found.map(within))).flat();
}

const drop = byId("drop");
for (const kind of ["dragenter", "dragover"]) {
  document.addEventListener(kind, (event) => {
    event.preventDefault();
    drop.classList.add("over");
  });
}
document.addEventListener("dragleave", () => drop.classList.remove("over"));
document.addEventListener("drop", async (event) => {
  event.preventDefault();
  drop.classList.remove("over");
  const plain = [...event.dataTransfer.files];
  const found = await dropped(event.dataTransfer.items);
  choose(found.length ? found : plain);
});
for (const id of ["file", "folder"]) {
  byId(id).addEventListener("change", (event) => {
    choose([...event.target.files].filter((file) => !file.name.startsWith(".")));
    event.target.value = ""; // the same file may be chosen again
  });
}
for (const id of ["ask", "compare"]) byId(id).addEventListener("change", ask);
byId("again").addEventListener("click", ask);
for (const id of ["plane", "opacity"]) byId(id).addEventListener("input", draw);
byId("panels").addEventListener(
  "wheel",
  (event) => {
    const slider = byId("plane");
    if (byId("plane-field").hidden || event.target.tagName !== "CANVAS") return;
    event.preventDefault();
    slider.value = Number(slider.value) + Math.sign(event.deltaY);
    draw();
  },
  { passive: false },
);
byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", byId("token").value.trim());
  begin();
});

begin();
