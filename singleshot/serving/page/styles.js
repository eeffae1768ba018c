/** The picture in every style, blended with the original as the sliders say, to look at and to download. */

import { byId, draw, path, say, stylized } from "./common.js";
import { begin, shares } from "./mask.js";
import { between } from "./mixing.js";
import { picture, scaled } from "./picture.js";

const results = [];    // {canvas, name, pixels} of each style
let round = 0;         // number of the latest round of requests: earlier ones are dropped
const luma = (d, i) => 0.299 * d[i] + 0.587 * d[i + 1] + 0.114 * d[i + 2];

/** A picture blended with its stylised version inside the mask, and the style's colours with the picture's own. */
function blended(pixels, original = picture.shown) {
  const strength = byId("strength").value / 100, colour = byId("colour").value / 100;
  const from = original.data, to = pixels.data, mixed = new ImageData(original.width, original.height);
  const out = mixed.data, inside = shares(original);
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

/** The picture in its own size, between the styles that `chosen` names with a share of the second. */
async function whole(chosen) {
  const { shown, png } = await scaled(picture.bitmap, Infinity), { names, share } = chosen(), drawn = [];
  for (const name of names) drawn.push(await stylized(name, png, asked()));
  const canvas = document.createElement("canvas");
  draw(canvas, blended(drawn.length > 1 ? between(...drawn, share) : drawn[0], shown));
  return canvas;
}

/** A link that saves what `give` gives, a canvas of so many pixels, when it is clicked. */
function link(name, { width, height }, give) {
  const size = `${width} × ${height} px`, save = Object.assign(document.createElement("a"), { href: "#", className: "save" });
  save.textContent = `Download, ${size}`; save.setAttribute("aria-label", `Download ${name}, ${size}`);
  save.addEventListener("click", async event => {
    event.preventDefault();
    try {
      const canvas = await give();
      const address = URL.createObjectURL(await new Promise(done => canvas.toBlob(done, "image/png")));
      Object.assign(document.createElement("a"), { href: address, download: `${name}.png` }).click();
      setTimeout(() => URL.revokeObjectURL(address), 60_000);
    } catch (error) { say("style-error", `${name}, ${size}: ${error.message}`); }
  });
  return save;
}

/** Links that save the canvas as it is, and the picture in its own size if that is larger. */
function saving(canvas, name, chosen) {
  const links = [link(name, picture.shown, () => canvas)];
  if (picture.bitmap.width > picture.shown.width) links.push(link(name, picture.bitmap, () => whole(chosen)));
  return links;
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
      below.append(...saving(canvas, style.name, () => ({ names: [style.name] }))); caption.append(below);
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
  openable(canvas, "both styles"); caption.append(...saving(canvas, "both-styles", mixed));
  mix();
}

/** The two styles that are chosen, and the share of the second. */
const mixed = () => ({ names: ["mix-first", "mix-second"].map(id => byId(id).value), share: byId("mix").value / 100 });

/** Draw the picture between the two chosen styles. */
export function mix() {
  const { names, share } = mixed(), [a, b] = names.map(chosen => results.find(({ name }) => name === chosen));
  const canvas = byId("mixed").querySelector("canvas");
  if (a && b && canvas) draw(canvas, blended(between(a.pixels, b.pixels, share)));
}

export function blendAll() {
  for (const { canvas, pixels } of results) draw(canvas, blended(pixels));
  mix();
}
