"use strict";
// Videos play while they are in sight, unless the reader asked for less motion. Without this script they wait
// for a click.
if (!matchMedia("(prefers-reduced-motion: reduce)").matches) {
  const seen = new IntersectionObserver(entries => {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting) target.play().catch(() => {});  // the browser may forbid it
      else target.pause();
    }
  });
  document.querySelectorAll("video").forEach(video => seen.observe(video));
}
