"use strict";
// Text and elements. Everything that a user, a log or a cluster wrote goes through `visible` into a text node: the page
// never parses HTML, and its policy forbids style attributes, so styles are set through the style object.

// Terminal escapes, bidirectional overrides and zero-width characters change how the text around them looks.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

function visible(value) {
  return String(value).replace(HIDDEN, (found) => {
    const code = found.charCodeAt(0).toString(16);
    return code.length <= 2 ? `\\x${code.padStart(2, "0")}` : `\\u${code.padStart(4, "0")}`;
  });
}

function el(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "style") Object.assign(made.style, value);
    else made.setAttribute(key, value === true ? "" : visible(value));
  }
  put(made, children);
  return made;
}

function put(parent, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    parent.append(child instanceof Node ? child : visible(child));
  }
}

function replace(parent, ...children) {
  parent.replaceChildren();
  put(parent, children);
}

// Text of users: isolated, so that right-to-left text does not move what stands beside it.
const user = (text, attributes) => el("bdi", attributes, text);

// A number with its source: what to read when one doubts it.
const figure = (text, source, attributes) => el("span", { class: "figure", title: `Source: ${source}`, ...attributes }, text);

const note = (...text) => el("p", { class: "note" }, ...text);

const plural = (count, one, many) => `${grouped(count)} ${count === 1 ? one : many || `${one}s`}`;

function grouped(value) {
  return Math.round(value).toString().replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

function compact(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "-";
  const size = Math.abs(value);
  if (size >= 1e12) return `${(value / 1e12).toFixed(1)}T`;
  if (size >= 1e9) return `${(value / 1e9).toFixed(1)}G`;
  if (size >= 1e6) return `${(value / 1e6).toFixed(1)}M`;
  if (size >= 1e4) return `${(value / 1e3).toFixed(1)}k`;
  if (size >= 1000) return grouped(value);
  if (Number.isInteger(value)) return String(value);
  if (size >= 100) return value.toFixed(1);
  if (size >= 1) return value.toFixed(2);
  return size === 0 ? "0" : size >= 0.001 ? value.toPrecision(3) : value.toExponential(1);
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "-";
  const sign = seconds < 0 ? "-" : "";
  const size = Math.abs(seconds);
  if (size === 0) return "0 s";
  if (size < 1) return `${sign}${Math.max(1, Math.round(size * 1000))} ms`;
  if (size < 60) return `${sign}${size < 10 ? size.toFixed(2) : size.toFixed(1)} s`;
  const whole = Math.round(size);
  const two = (value) => String(value).padStart(2, "0");
  if (whole < 3600) return `${sign}${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  if (whole < 86400) return `${sign}${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} min`;
  const rest = Math.floor((whole % 86400) / 3600);
  return `${sign}${Math.floor(whole / 86400)} d${rest ? ` ${rest} h` : ""}`;
}

function bytes(value) {
  if (value === null || value === undefined) return "-";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value >= 100 || Number.isInteger(value) ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
}

const percent = (share, digits = 1) => (share === null || share === undefined ? "-" : `${(share * 100).toFixed(digits)} %`);

// Shares in tenths of a per cent, whose sum is 100.0 exactly: what rounding leaves goes to the largest remainders.
function tenths(values) {
  const sum = values.reduce((total, value) => total + value, 0);
  if (!(sum > 0)) return values.map(() => 0);
  const exact = values.map((value) => (value / sum) * 1000);
  const floors = exact.map(Math.floor);
  let left = 1000 - floors.reduce((total, value) => total + value, 0);
  const order = exact.map((value, index) => [value - floors[index], index]).sort((a, b) => b[0] - a[0]);
  for (const [, index] of order) {
    if (left <= 0) break;
    floors[index] += 1;
    left -= 1;
  }
  return floors;
}

// Times are Unix seconds; the first slice of the format had ISO text in places.
function seconds(value) {
  if (value === null || value === undefined || value === "") return null;
  if (typeof value === "number") return value;
  const parsed = Date.parse(value);
  return Number.isNaN(parsed) ? null : parsed / 1000;
}

const told = (time) => time !== null && time !== undefined && Number.isFinite(time) && Math.abs(time) < 8e12;
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const day = (text) => `${Number(text.slice(8, 10))} ${MONTHS[Number(text.slice(5, 7)) - 1]}`;

// A time on an axis of so many seconds: what its neighbours have in common is left out. UTC, as all times of dljob.
function clock(time, span = 0) {
  if (!told(time)) return "-";
  const text = new Date(time * 1000).toISOString();
  if (span > 43200 && text.slice(11, 16) === "00:00") return day(text);
  if (span > 600) return text.slice(11, 16);
  return span && span < 10 ? text.slice(11, 23) : text.slice(11, 19);
}

// A time in a list: with its day where the job has several.
function moment(time) {
  if (!told(time)) return "-";
  const text = new Date(time * 1000).toISOString();
  return page.end - page.start > 43200 ? `${day(text)} ${text.slice(11, 19)}` : text.slice(11, 19);
}

function stamp(time) {
  if (!told(time)) return "-";
  return new Date(time * 1000).toISOString().replace("T", " ").replace(/\.\d+Z$/, "");
}

const stored = {
  get(key) {
    try {
      return localStorage.getItem(`dljob.${key}`);
    } catch {
      return null; // A page from disk may have no storage; the switch then lasts as long as the page.
    }
  },
  set(key, value) {
    try {
      localStorage.setItem(`dljob.${key}`, value);
    } catch {
      // As above.
    }
  },
};
