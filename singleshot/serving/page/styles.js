/** The picture in every style, blended with the original as the sliders say, to look at and to download. */

import { byId, draw, path, say, stylized } from "./common.js";
import { begin, shares } from "./mask.js";
import { between } from "./mixing.js";
import { picture } from "./picture.js";

const results = [];    // {canvas, name, pixels} of each style
let round = 0;         // number of the latest round of requests: earlier ones are dropped
const luma = (d, i) => 0.299 * d[i] + 0.587 * d[i + 1] + 0.114 * d[i + 2];

/** The picture blended with its stylised version inside the mask, and the style's colours with the picture's own. */
function blended(pixels) {
  const strength = byId("strength").value / 100, colour = byId("colour").value / 100;
  const from = picture.shown.data, to = pixels.data, mixed = new ImageData(picture.shown.width, picture.shown.height);
  const out = mixed.data, inside = shares();
  for (let i = 0; i < out.length; i += 4) {
    const difference = luma(to, i) - luma(from, i), share = inside ? strength * inside[i] / 255 : strength;
    for (let k = i; k < i + 3; k++) {
      const own = Math.min(255, Math.max(0, from[k] + difference));
      out[k] = from[k] + share * (own + colour * (to[k] - own) - from[k]);
    }
    out[i + 3] = 255;
  }
  return mixed;
}

/** What the server is asked for besides the style. Its strokes of 1 are those of a picture of 768 pixels, and 20 at most. */
function asked() {
  const own = 768 / Math.max(picture.shown.width, picture.shown.height);
  return `stroke=${Math.min(20, byId("stroke").value / 100 * own)}&keep_faces=${byId("keep-faces").checked}`;
}

/** A figure with an empty canvas, among the styles or elsewhere. */
function place(name, tag, kind, where = "styles") {
  const figure = document.createElement("figure"), canvas = document.createElement("canvas");
  const caption = document.createElement("figcaption");
  caption.innerHTML = `<span class="name"><b></b> <span class="tag ${kind}"></span> <span class="time"></span></span>`;
  caption.querySelector("b").textContent = name; caption.querySelector(".tag").textContent = tag;
  canvas.setAttribute("role", "img"); canvas.setAttribute("aria-label", `${name}, ${tag}`);
  figure.append(canvas, caption); byId(where).append(figure);
  return { canvas, caption };
}

/** Show a result at full size when it is clicked. */
function openable(canvas, name) {
  const button = Object.assign(document.createElement("button"), { type: "button", className: "enlarge" });
  canvas.replaceWith(button); button.append(canvas);
  button.setAttribute("aria-label", `Show ${name} large`);
  button.addEventListener("click", () => {
    const image = byId("large").querySelector("img");
    image.src = canvas.toDataURL(); image.alt = `The picture in ${name}, large`;
    byId("large").showModal();
  });
}

/** A link that saves the canvas as it is when it is clicked. */
function saving(canvas, name) {
  const link = Object.assign(document.createElement("a"), { href: "#", className: "save", textContent: "Download" });
  link.setAttribute("aria-label", `Download ${name}`);
  link.addEventListener("click", event => {
    event.preventDefault();
    canvas.toBlob(blob => {
      const address = URL.createObjectURL(blob);
      Object.assign(document.createElement("a"), { href: address, download: `${name}.png` }).click();
      setTimeout(() => URL.revokeObjectURL(address), 60_000);
    }, "image/png");
  });
  return link;
}

function painting(name) {
  const image = Object.assign(document.createElement("img"), { src: path("paintings", name), alt: `the painting of ${name}` });
  return image;
}

export async function inEveryStyle(styles, number) {
  byId("styles").replaceChildren();
  begin(place("The picture", "original", "").canvas, blendAll);
  return again(styles, number);
}

/** The same picture once more, with other strokes or faces. */
export async function again(styles, number = picture.number) {
  const own = ++round, stale = () => own !== round || number !== picture.number;
  say("style-error", ""); byId("styles").replaceChildren(byId("styles").firstElementChild); results.length = 0;
  if (!styles.length) return say("style-status", "No style is served; `singleshot learn-style painting.jpg` learns one, `make repro` two.");
  for (const [i, style] of styles.entries()) {
    say("style-status", `Style ${i + 1} of ${styles.length} …`);
    const start = performance.now();
    try {
      const pixels = await stylized(style.name, picture.png, asked());
      if (stale()) return;
      const time = `${Math.round(performance.now() - start)} ms`;
      const { canvas, caption } = place(style.name, "styled", "dense");
      caption.querySelector(".time").textContent = time; openable(canvas, style.name);
      const below = Object.assign(document.createElement("span"), { className: "of" });
      if (style.painting) below.append(painting(style.name));
      below.append(saving(canvas, style.name)); caption.append(below);
      results.push({ canvas, name: style.name, pixels });
      draw(canvas, blended(pixels));
    } catch (error) {
      if (stale()) return;
      say("style-error", `${style.name}: ${error.message}`);
    }
  }
  offerMix();
  say("style-status", `Shown in ${results.length} of ${styles.length} styles.`);
}

/** Offer the styles that drew the picture for mixing, first those that were chosen before. */
function offerMix() {
  const names = results.map(({ name }) => name);
  for (const [id, proposed] of [["mix-first", names[0]], ["mix-second", names[1] ?? names[0]]]) {
    const before = byId(id).value;
    byId(id).replaceChildren(...names.map(name => new Option(name)));
    byId(id).value = names.includes(before) ? before : proposed ?? "";
  }
  byId("mixed").replaceChildren();
  if (!names.length) return;
  const { canvas, caption } = place("Both styles", "mixed", "dense", "mixed");
  openable(canvas, "both styles"); caption.append(saving(canvas, "both-styles"));
  mix();
}

/** Draw the picture between the two chosen styles. */
export function mix() {
  const [a, b] = ["mix-first", "mix-second"].map(id => results.find(({ name }) => name === byId(id).value));
  const canvas = byId("mixed").querySelector("canvas");
  if (a && b && canvas) draw(canvas, blended(between(a.pixels, b.pixels, byId("mix").value / 100)));
}

export function blendAll() {
  for (const { canvas, pixels } of results) draw(canvas, blended(pixels));
  mix();
}
