/** The page: one module for each section, all of which get the same picture and list of networks. */

import * as agents from "./agents.js";
import { ask, byId, say } from "./common.js";
import { classify } from "./classifier.js";
import { drawn, listen, open } from "./picture.js";
import { blendAll, inEveryStyle } from "./styles.js";

for (const [id, unit] of [["strength", "%"], ["colour", "%"], ["force", "N"]])
  byId(id).addEventListener("input", event => {
    event.target.nextElementSibling.textContent = `${event.target.value} ${unit}`;
    if (unit === "%") blendAll();
  });

try {
  const models = await (await ask("models")).json();
  models.style.sort((a, b) => a.name.localeCompare(b.name));
  const use = number => Promise.all([inEveryStyle(models.style, number), classify(number)]);
  listen(use);
  agents.listen(models.policy);
  await open(drawn(), use);
} catch (error) { say("picture-error", error.message); }
