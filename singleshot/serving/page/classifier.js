/** What a classifier sees in the picture, prepared rightly and as in Hyyppä's program. */

import { byId, percent, post, say } from "./common.js";
import { picture } from "./picture.js";

const READ = ["image/png", "image/jpeg", "image/webp"], LARGEST_BYTES = 15e6;

/** Draw the middle of the picture, as the network gets it; if `reported`, mirrored about its diagonal. */
function view(canvas, reported) {
  const { width, height } = picture.shown, side = Math.min(width, height), whole = new OffscreenCanvas(width, height);
  whole.getContext("2d").putImageData(picture.shown, 0, 0);
  canvas.width = canvas.height = 224;
  const context = canvas.getContext("2d");
  if (reported) context.setTransform(0, 1, 1, 0, 0, 0);
  context.drawImage(whole, (width - side) / 2, (height - side) / 2, side, side, 0, 0, 224, 224);
}

/** The user's own file, so that the answers are those of `/classify` and the command; else what is shown. */
const sent = () => READ.includes(picture.file.type) && picture.file.size < LARGEST_BYTES ? picture.file : picture.png;

async function answers(preparation) {
  const address = `classify?preparation=${preparation}`;
  try { return await (await post(address, sent())).json(); }
  catch { return (await post(address, picture.png)).json(); }    // too many pixels for the server, for example
}

export async function classify(number) {
  say("see-error", "");
  for (const preparation of ["right", "reported"]) {
    const list = byId(preparation);
    list.replaceChildren(); view(byId(`${preparation}-view`), preparation === "reported");
    try {
      const found = (await answers(preparation)).answers;
      if (number !== picture.number) return;
      for (const { label, probability } of found) {
        const item = document.createElement("li");
        item.innerHTML = "<i></i><span></span><span></span>";
        item.children[0].style.width = percent(probability).replace(" ", "");
        item.children[1].textContent = label; item.children[2].textContent = percent(probability);
        list.append(item);
      }
    } catch (error) { if (number === picture.number) say("see-error", error.message); return; }
  }
}
