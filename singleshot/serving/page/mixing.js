/** Pictures between two styles, mixed as `stylize --style a:0.7 --style b:0.3` mixes them. */

const LOGIT = Float64Array.from({ length: 256 }, (_, value) => Math.log((value + 0.5) / (255.5 - value)));

/** Pixels between `a` (share 0) and `b` (share 1), of one size: what the networks drew before their sigmoid is mixed. */
export function between(a, b, share) {
  const mixed = new ImageData(a.width, a.height), out = mixed.data;
  for (let i = 0; i < out.length; i++) {
    const logit = (1 - share) * LOGIT[a.data[i]] + share * LOGIT[b.data[i]];
    out[i] = i % 4 === 3 ? 255 : 256 / (1 + Math.exp(-logit)) - 0.5;
  }
  return mixed;
}
