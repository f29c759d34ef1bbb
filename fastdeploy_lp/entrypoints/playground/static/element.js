// Functions that create DOM nodes.

/** Returns an element with properties (`class`, `dataset`, `on…` handlers, `aria-…` attributes) and children. */
export function h(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) setProperty(node, name, value);
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

function setProperty(node, name, value) {
  if (value === undefined || value === null) return;
  if (name === "class") node.className = value;
  else if (name === "dataset") Object.assign(node.dataset, value);
  else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
  else if (name.startsWith("aria-") || name === "role" || name === "for") node.setAttribute(name, value);
  else node[name] = value;
}

const SVG = "http://www.w3.org/2000/svg";

/** Returns an SVG element with attributes and children. */
export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

let lastId = 0;

/** Returns a unique element id. */
export function newId(prefix) {
  lastId += 1;
  return `${prefix}-${lastId}`;
}

const SHARED = "LogitsProcessor";

/** Returns the distinctive part of a processor's name: most names end alike. */
export function shortName(name) {
  return name.endsWith(SHARED) && name !== SHARED ? name.slice(0, -SHARED.length) : name;
}

/** Returns nodes for a processor's name that may be broken before the part that most names share. */
export function breakable(name) {
  const short = shortName(name);
  return [short, h("wbr"), name.slice(short.length)];
}

/** Returns nodes for a text with `code` in backticks. */
export function prose(text) {
  return text.split("`").map((part, index) => (index % 2 ? h("code", {}, part) : part));
}
