// The last values of a metric as a line.

import { svg } from "./element.js";

const WIDTH = 120;
const HEIGHT = 32;

/** Returns the picture. `label` describes the line; undefined values are gaps at the beginning. */
export function sparkline(values, label, most) {
  const known = values.filter((value) => value !== undefined);
  const top = Math.max(most ?? 0, ...known, 1e-9);
  const step = WIDTH / Math.max(1, values.length - 1);
  const points = values
    .map((value, index) => (value === undefined ? null : `${(index * step).toFixed(1)},${(HEIGHT - 1 - (value / top) * (HEIGHT - 2)).toFixed(1)}`))
    .filter(Boolean);
  const picture = svg("svg", { class: "sparkline", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label });
  picture.append(line(`0,${HEIGHT - 0.5} ${WIDTH},${HEIGHT - 0.5}`, 0.3));
  if (points.length < 2) return picture;
  const [first, last] = [points[0], points.at(-1)].map((point) => point.split(",")[0]);
  picture.append(
    svg("polygon", { points: `${first},${HEIGHT} ${points.join(" ")} ${last},${HEIGHT}`, fill: "currentColor", opacity: "0.15" }),
    line(points.join(" "), 1),
  );
  return picture;
}

function line(points, opacity) {
  const stroke = { stroke: "currentColor", "stroke-width": "1.5", "vector-effect": "non-scaling-stroke" };
  return svg("polyline", { points, fill: "none", opacity: String(opacity), ...stroke });
}
