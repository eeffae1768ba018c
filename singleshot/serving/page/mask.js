/** Where the style goes: a mask, painted on the picture or read from a file. Black keeps the picture. */

import { byId, draw, say } from "./common.js";
import { picture } from "./picture.js";

const TINT = [11, 102, 195];    // of what is kept, on the shown picture
const mask = new OffscreenCanvas(1, 1), context = mask.getContext("2d", { willReadFrequently: true });
let red = null, shown = null;

/** The style's share of each pixel of a picture, as the bytes of an image whose red counts; null is the whole picture. */
export function shares({ width, height }) {
  if (!red || width === mask.width && height === mask.height) return red;
  const large = new OffscreenCanvas(width, height).getContext("2d");
  large.drawImage(mask, 0, 0, width, height);
  return large.getImageData(0, 0, width, height).data;
}

function fill(colour, operation = "source-over") {
  context.globalCompositeOperation = operation;
  context.fillStyle = colour; context.fillRect(0, 0, mask.width, mask.height);
  context.globalCompositeOperation = "source-over";
}

/** The picture, tinted where it is kept. */
function show() {
  if (!red) return draw(shown, picture.shown);
  const tinted = new ImageData(new Uint8ClampedArray(picture.shown.data), mask.width), out = tinted.data;
  for (let i = 0; i < out.length; i += 4)
    for (let k = 0; k < 3; k++) out[i + k] += (1 - red[i] / 255) * (TINT[k] - out[i + k]) / 2;
  draw(shown, tinted);
}

function clear() { red = null; fill("white"); say("mask-error", ""); show(); }

/** Take the mask as it has been drawn. */
function take() { red = context.getImageData(0, 0, mask.width, mask.height).data; show(); }

/** A soft dot of the brush, around a place on the shown picture. */
function dot(event) {
  const scale = mask.width / shown.clientWidth, radius = byId("brush-size").value / 200 * mask.width;
  const x = event.offsetX * scale, y = event.offsetY * scale, soft = context.createRadialGradient(x, y, radius / 2, x, y, radius);
  const grey = byId("brush").value === "keep" ? 0 : 255;
  soft.addColorStop(0, `rgb(${grey} ${grey} ${grey})`); soft.addColorStop(1, `rgb(${grey} ${grey} ${grey} / 0)`);
  context.fillStyle = soft; context.fillRect(x - radius, y - radius, 2 * radius, 2 * radius);
}

/** Begin with the style everywhere in a new picture, which `canvas` shows; `changed` is called after each change. */
export function begin(canvas, changed) {
  shown = canvas; mask.width = picture.shown.width; mask.height = picture.shown.height;
  clear();
  const paint = event => { if (event.buttons & 1) { dot(event); take(); changed(); } };
  canvas.style.touchAction = "none"; canvas.style.cursor = "crosshair";
  for (const kind of ["pointerdown", "pointermove"]) canvas.addEventListener(kind, paint);
}

/** Let the controls change the mask. */
export function listen(changed) {
  byId("mask-clear").addEventListener("click", () => { clear(); changed(); });
  byId("mask-swap").addEventListener("click", () => { fill("white", "difference"); take(); changed(); });
  byId("mask-file").addEventListener("change", async event => {
    const file = event.target.files[0];
    if (!file) return;
    try {
      const bitmap = await createImageBitmap(file);
      say("mask-error", ""); fill("black");
      context.filter = "grayscale(1)"; context.drawImage(bitmap, 0, 0, mask.width, mask.height); context.filter = "none";
      take(); changed();
    } catch { say("mask-error", "This mask isn't a picture that your browser can read. Try a PNG."); }
    event.target.value = "";
  });
}
