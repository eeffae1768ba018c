/** The camera in one style, or between two, at the rate that the server gives. */

import { byId, say, stylized } from "./common.js";
import { between } from "./mixing.js";

let stream = null;

/** The frame that the camera shows now, as a JPEG of the chosen size. */
function frame(video) {
  const scale = Math.min(1, byId("camera-side").value / Math.max(video.videoWidth, video.videoHeight));
  const width = Math.round(video.videoWidth * scale), height = Math.round(video.videoHeight * scale);
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  canvas.getContext("2d").drawImage(video, 0, 0, width, height);
  return new Promise(done => canvas.toBlob(done, "image/jpeg", 0.9));
}

/** A picture of the frame in the chosen styles: in one of them where the other has no share. */
async function drawn(jpeg) {
  const share = byId("camera-share").value / 100, [a, b] = [byId("camera-first").value, byId("camera-second").value];
  const inStyle = style => stylized(style, jpeg, `keep_faces=${byId("camera-faces").checked}`);
  if (!b || share === 0) return inStyle(a);
  if (share === 1) return inStyle(b);
  return between(...await Promise.all([inStyle(a), inStyle(b)]), share);
}

export function stop() {
  stream?.getTracks().forEach(track => track.stop());
  stream = null;
  say("camera-start", "Start the camera");
}

async function start() {
  if (stream) { stop(); return say("camera-status", "Stopped."); }
  say("camera-error", "");
  if (!byId("camera-first").value) return say("camera-error", "No style is served; `singleshot learn-style painting.jpg` learns one, `make repro` two.");
  if (!navigator.mediaDevices) return say("camera-error", "Browsers give the camera only to pages over https, or from localhost.");
  try {
    const own = stream = await navigator.mediaDevices.getUserMedia({ video: { width: 640, height: 480 } });
    say("camera-start", "Stop the camera");
    const video = Object.assign(document.createElement("video"), { srcObject: own, muted: true, playsInline: true });
    await video.play();
    let since = performance.now(), frames = 0;
    while (own === stream) {
      const picture = await drawn(await frame(video));
      if (own !== stream) break;
      const canvas = byId("camera-picture");
      canvas.width = picture.width; canvas.height = picture.height; canvas.hidden = false;
      canvas.getContext("2d").putImageData(picture, 0, 0);
      frames++;
      const seconds = (performance.now() - since) / 1000;
      if (seconds > 1) {
        say("camera-status", `${(frames / seconds).toFixed(1)} pictures a second, ${picture.width} × ${picture.height} pixels.`);
        since = performance.now(); frames = 0;
      }
    }
  } catch (error) {
    stop(); say("camera-status", "Stopped.");
    say("camera-error", error.name === "NotAllowedError" ? "Your browser does not let this page use the camera."
      : error.name === "NotFoundError" ? "There is no camera." : error.message);
  }
}

/** Offer the styles that are served. */
export function listen(styles) {
  byId("camera-first").replaceChildren(...styles.map(({ name }) => new Option(name)));
  byId("camera-second").replaceChildren(new Option("none", ""), ...styles.map(({ name }) => new Option(name)));
  byId("camera-start").addEventListener("click", start);
  addEventListener("pagehide", stop);
}
