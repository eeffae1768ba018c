/** The page: one module for each section, all of which get the same picture and list of networks. */

import * as agents from "./agents.js";
import * as camera from "./camera.js";
import { ask, byId, say } from "./common.js";
import { classify } from "./classifier.js";
import * as mask from "./mask.js";
import { drawn, listen, open } from "./picture.js";
import { again, blendAll, inEveryStyle, mix } from "./styles.js";

const BLENDING = ["strength", "colour", "mix"];
for (const id of [...BLENDING, "stroke", "brush-size", "camera-share", "force"])
  byId(id).addEventListener("input", event => {
    event.target.nextElementSibling.textContent = `${event.target.value} ${id === "force" ? "N" : "%"}`;
    if (BLENDING.includes(id)) blendAll();
  });
byId("large").addEventListener("click", () => byId("large").close());
for (const id of ["mix-first", "mix-second"]) byId(id).addEventListener("change", mix);

try {
  const models = await (await ask("models")).json();
  models.style.sort((a, b) => a.name.localeCompare(b.name));
  const see = models.classifier.length ? classify : () => {};
  if (!models.classifier.length) for (const each of [byId("see"), byId("to-see")]) each.hidden = true;
  const use = number => Promise.all([inEveryStyle(models.style, number), see(number)]);
  listen(use);
  mask.listen(blendAll);
  for (const id of ["stroke", "keep-faces"]) byId(id).addEventListener("change", () => again(models.style));
  camera.listen(models.style);
  agents.listen(models.policy);
  await open(drawn(), use);
} catch (error) { say("picture-error", error.message); }
