/** What all parts of the page share: elements, requests, and names of networks. */

export const byId = id => document.getElementById(id);
export const say = (id, text) => { byId(id).textContent = text; };
export const percent = x => (100 * x).toFixed(x < 0.0995 ? 1 : 0) + " %";

const PRUNERS = {
  snip: "SNIP", grasp: "GraSP", synflow: "SynFlow", "snip-shuffled": "SNIP, shuffled", gradual: "gradual magnitude",
};
/** How a network was pruned, with up to six digits: 0.995 is not 100 %. */
export const pruner = ({ name }) => /\/([\w-]+)-0\.\d+\//.exec(name)?.[1];
export function pruning(network) {
  if (pruner(network) === "small") return "narrow dense";
  const by = PRUNERS[pruner(network)] || pruner(network), share = `${+(100 * network.sparsity).toPrecision(6)} % pruned`;
  return network.sparsity ? share + (by ? ` by ${by}` : "") : "dense";
}

/** The answer to a request; throws an Error with a readable message. Paths are relative: a proxy may prefix them. */
export async function ask(path, options) {
  let response;
  try { response = await fetch(path, options); }
  catch { throw new Error("the server doesn't answer; is it still running?"); }
  if (response.ok) return response;
  const told = await response.json().catch(() => ({}));
  throw new Error(told.error || `the server answers ${response.status}`);
}

/** A path of names, of which each may have slashes of its own. */
export const path = (route, name) => `${route}/${name.split("/").map(encodeURIComponent).join("/")}`;

export const post = (address, body) => ask(address, { method: "POST", body, headers: { "Content-Type": body.type } });

/** A picture file in a style, as ImageData; `query` is what the server is asked for besides the style. */
export async function stylized(style, file, query) {
  const bitmap = await createImageBitmap(await (await post(`${path("stylize", style)}?${query}`, file)).blob());
  const context = new OffscreenCanvas(bitmap.width, bitmap.height).getContext("2d");
  context.drawImage(bitmap, 0, 0);
  return context.getImageData(0, 0, bitmap.width, bitmap.height);
}

export function draw(canvas, image) {
  canvas.width = image.width; canvas.height = image.height;
  canvas.getContext("2d").putImageData(image, 0, 0);
}
