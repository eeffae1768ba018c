/** Agents that play live, one or two of an environment side by side. */

import { ask, byId, path, pruner, pruning, say } from "./common.js";

const DEFAULT_SPARSITY = 0.951;    // beyond it, agents of the default run hardly move
let policies = [];
let socket = null;
const starts = new Map();    // bodies before the first step, by environment

const named = policy => {
  const { details, name } = policy, seed = /seed-(\d+)/.exec(name);
  return `${details.algorithm.toUpperCase()}, ${pruning(policy)}${seed ? `, seed ${seed[1]}` : ""}`;
};
const chosen = () => ["first", "second"].map(id => policies.find(policy => policy.name === byId(id).value)).filter(Boolean);

/** Offer the agents of the chosen environment: at first a dense one, beside a pruned one of the same algorithm. */
function offer() {
  const there = policies.filter(policy => policy.details.environment === byId("environment").value);
  const dense = there.find(policy => policy.details.algorithm === "bcq" && !policy.sparsity) || there.find(policy => !policy.sparsity)
    || there[0];
  const pruned = there.filter(p => p.details.algorithm === dense?.details.algorithm && p.sparsity && p.sparsity <= DEFAULT_SPARSITY
    && p !== dense);
  const beside = pruned.find(p => pruner(p) === "snip") || pruned[0];
  byId("first").replaceChildren(...there.map(policy => new Option(named(policy), policy.name)));
  byId("second").replaceChildren(...there.map(policy => new Option(named(policy), policy.name)), new Option("none", ""));
  if (dense) byId("first").value = dense.name;
  const alone = there.length < 2;
  byId("beside").hidden = alone;
  say("push-words", alone ? ". Push it, and see whether it keeps on running."
    : ", from the same start. Push them, and see which one keeps on running.");
  byId("second").value = beside ? beside.name : "";
}

function paint(agents) {
  const canvas = byId("arena"), c = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
  const colour = name => style.getPropertyValue(name).trim();
  canvas.width = Math.round(canvas.clientWidth * devicePixelRatio);
  const lane = Math.max(200, Math.min(260, canvas.clientWidth * 0.5)) * devicePixelRatio;
  canvas.height = Math.round(lane * agents.length);
  const scale = lane * 0.8 / 1.85;    // pixels of a metre: Hopper reaches up to 1.5 m and jumps
  c.fillStyle = colour("--paper"); c.fillRect(0, 0, canvas.width, canvas.height);
  const text = 14 * devicePixelRatio;
  agents.forEach((agent, i) => {
    const ground = lane * (i + 1) - lane * 0.14, left = canvas.width / 2 - agent.position * scale;
    c.save(); c.beginPath(); c.rect(0, lane * i, canvas.width, lane); c.clip();
    c.strokeStyle = c.fillStyle = colour("--line"); c.lineWidth = devicePixelRatio;
    c.fillRect(0, ground, canvas.width, lane);
    c.font = `${text * 0.85}px system-ui`; c.textAlign = "center";
    for (let metre = Math.floor(-left / scale); left + metre * scale < canvas.width; metre++) {
      const x = left + metre * scale;
      c.fillStyle = colour("--line"); c.fillRect(x, lane * i, devicePixelRatio, lane);
      if (Math.min(x, canvas.width - x) < 1.5 * text) continue;  // its name would be cut
      c.fillStyle = colour("--muted"); c.fillText(`${metre} m`, x, ground + text * 1.3);
    }
    c.strokeStyle = colour(i ? "--pruned" : "--dense"); c.lineCap = "round"; c.globalAlpha = agent.ended ? 0.45 : 1;
    for (const [x, z, x2, z2, r] of agent.capsules) {
      c.lineWidth = 2 * r * scale; c.beginPath();
      c.moveTo(left + x * scale, ground - z * scale); c.lineTo(left + x2 * scale, ground - z2 * scale); c.stroke();
    }
    c.globalAlpha = 1; c.fillStyle = colour("--ink"); c.textAlign = "left"; c.font = `600 ${text}px system-ui`;
    const write = (words, line) => c.fillText(words, text * 0.7, lane * i + text * line, canvas.width - 1.4 * text);
    write(named(agent.card), 1.5);
    c.font = `${text}px system-ui`;
    const moves = agent.seconds && `${agent.speed.toFixed(1)} m/s, return ${agent.return.toFixed(0)}, ${agent.seconds.toFixed(1)} s`;
    if (moves || agent.told) write([agent.told, moves].filter(Boolean).join("; "), 2.9);
    c.restore();
  });
}

/** The agents as they begin, before anything is started. */
async function paintStart() {
  const environment = byId("environment").value;
  if (!environment) return say("agents-error", "No agent is served; `dvc repro export` exports some.");
  try {
    if (!starts.has(environment)) starts.set(environment, await (await ask(path("watch", environment))).json());
    if (!socket && environment === byId("environment").value) paint(chosen().map(card => ({ ...starts.get(environment), card, told: "" })));
  } catch (error) { say("agents-error", error.message); }
}

export function stop() {
  const old = socket; socket = null;
  if (old) old.close();
  say("watch", "Start"); byId("push-on").disabled = byId("push-back").disabled = true;
}

function watch() {
  if (socket) { stop(); return say("agents-status", "Stopped."); }
  say("agents-error", "");
  const cards = chosen();
  if (!cards.length) return say("agents-error", "No agent is served; `dvc repro export` exports some.");
  const names = cards.map(card => "policies=" + encodeURIComponent(card.name)).join("&");
  const address = new URL(`${path("watch", byId("environment").value)}?${names}`, document.baseURI);
  address.protocol = address.protocol === "https:" ? "wss:" : "ws:";
  const own = socket = new WebSocket(address);
  say("watch", "Stop"); say("agents-status", "Starting …");
  own.onmessage = event => {
    if (own !== socket) return;
    byId("push-on").disabled = byId("push-back").disabled = false;
    const agents = JSON.parse(event.data).agents.map((agent, i) => {
      const told = agent.posture === "on its feet" ? "" : agent.posture;
      return { ...agent, card: cards[i], told: told || (agent.ended ? "time is up" : "") };
    });
    paint(agents);
    const state = agents.map(agent => `${named(agent.card)}: ${agent.posture}`).join("; ") + ".";
    if (byId("agents-status").textContent !== state) say("agents-status", state);
  };
  own.onclose = event => {
    if (own !== socket) return;
    stop(); say("agents-status", "Stopped.");
    say("agents-error", event.reason || "The connection to the server is gone; is it still running?");
  };
}

const push = direction => socket?.readyState === WebSocket.OPEN
  && socket.send(JSON.stringify({ push: direction * Number(byId("force").value) }));

/** Offer `found`, the policies that are served. */
export function listen(found) {
  policies = found;
  byId("environment").append(...Array.from(new Set(policies.map(policy => policy.details.environment)), environment => new Option(environment)));
  offer(); paintStart();
  const again = () => { const ran = Boolean(socket); stop(); if (ran) watch(); else paintStart(); };
  byId("environment").addEventListener("change", () => { offer(); again(); });
  byId("first").addEventListener("change", again);
  byId("second").addEventListener("change", again);
  byId("watch").addEventListener("click", watch);
  byId("push-on").addEventListener("click", () => push(1));
  byId("push-back").addEventListener("click", () => push(-1));
  addEventListener("pagehide", stop);
  addEventListener("resize", () => socket || paintStart());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => socket || paintStart());
}
