/** The picture that all networks get: chosen, dropped, pasted or drawn. */

import { byId, say } from "./common.js";

/** The scaled picture as ImageData, the same as a PNG file, the user's own file and its pixels, and the number of the picture. */
export const picture = { shown: null, png: null, file: null, bitmap: null, number: 0 };
let chosen = 0;        // number of the choice: earlier ones that are still being read are dropped
let last = null;       // what was chosen last, for another size

/** A picture whose long side has `side` pixels at most, as ImageData and as a PNG file. */
export async function scaled(bitmap, side) {
  const scale = Math.min(1, side / Math.max(bitmap.width, bitmap.height));
  const width = Math.max(8, Math.round(bitmap.width * scale)), height = Math.max(8, Math.round(bitmap.height * scale));
  const canvas = Object.assign(document.createElement("canvas"), { width, height }), context = canvas.getContext("2d");
  context.fillStyle = "white"; context.fillRect(0, 0, width, height);
  context.imageSmoothingQuality = "high"; context.drawImage(bitmap, 0, 0, width, height);
  const png = await new Promise(done => canvas.toBlob(done, "image/png"));
  return { shown: context.getImageData(0, 0, width, height), png };
}

/** Read `source`, a file or a promise of one, scale it as chosen, and hand it to `use`. */
export async function open(source, use) {
  const choice = ++chosen, before = last;
  last = source; say("picture-error", "");
  try {
    const file = await source, bitmap = await createImageBitmap(file), small = await scaled(bitmap, byId("side").value);
    if (choice !== chosen) return;
    Object.assign(picture, small, { file, bitmap });
    await use(++picture.number);
  } catch (error) {
    if (choice !== chosen) return;
    last = before;
    say("picture-error", error.name === "InvalidStateError" || error.name === "EncodingError"
      ? "This file isn't a picture that your browser can read. Try a JPEG, PNG or WebP." : error.message);
  }
}

/** A landscape. */
export function drawn() {
  const canvas = Object.assign(document.createElement("canvas"), { width: 512, height: 384 });
  const c = canvas.getContext("2d");
  const sky = c.createLinearGradient(0, 0, 0, 384);
  sky.addColorStop(0, "#2b6cb0"); sky.addColorStop(1, "#fbd38d");
  c.fillStyle = sky; c.fillRect(0, 0, 512, 384);
  c.fillStyle = "#fff5d6"; c.beginPath(); c.arc(380, 110, 42, 0, 7); c.fill();
  [["#4a5568", 150, 120], ["#2d5a4a", 210, 80], ["#22543d", 270, 50]].forEach(([colour, y, height], i) => {
    c.fillStyle = colour; c.beginPath(); c.moveTo(0, 384);
    for (let x = 0; x <= 512; x += 4) c.lineTo(x, y + height * Math.sin(x / (70 + 23 * i) + i * 2) / 2);
    c.lineTo(512, 384); c.fill();
  });
  return new Promise(done => canvas.toBlob(done, "image/png"));
}

/** Hand every picture that the user chooses to `use`. */
export function listen(use) {
  byId("file").addEventListener("change", event => event.target.files[0] && open(event.target.files[0], use));
  byId("sample").addEventListener("click", () => open(drawn(), use));
  byId("side").addEventListener("change", () => last && open(last, use));
  document.addEventListener("paste", event => {
    const file = [...event.clipboardData.files][0];
    if (file) open(file, use);
  });
  document.addEventListener("dragover", event => { event.preventDefault(); byId("picture").classList.add("over"); });
  document.addEventListener("dragleave", () => byId("picture").classList.remove("over"));
  document.addEventListener("drop", event => {
    event.preventDefault(); byId("picture").classList.remove("over");
    if (event.dataTransfer.files[0]) open(event.dataTransfer.files[0], use);
  });
}
