"""Checks of a shown page, run in it: text that is cut or overlaps, contrast, numbers without a source.

Each is an expression that returns a list of findings, in words.
"""

from __future__ import annotations

_TEXTS = """
const visibleBox = (rect, element) => {
  // What scrolled boxes cut off is not seen, and is not cut: it can be scrolled to.
  let [left, top, right, bottom] = [rect.left, rect.top, rect.right, rect.bottom];
  for (let one = element; one && one !== document.body; one = one.parentElement) {
    if (getComputedStyle(one).overflowX === 'visible') continue;
    const box = one.getBoundingClientRect();
    left = Math.max(left, box.left); right = Math.min(right, box.right);
    top = Math.max(top, box.top); bottom = Math.min(bottom, box.bottom);
  }
  return right - left > 1 && bottom - top > 1 ? {left, top, right, bottom} : null;
};
const texts = () => {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = [];
  while (walker.nextNode()) {
    const node = walker.currentNode;
    const element = node.parentElement;
    if (!node.data.trim() || element.closest('script, style, noscript, option, [hidden], .hidden, .skip')) continue;
    if (!element.checkVisibility({visibilityProperty: true})) continue;
    found.push({node, element});
  }
  return found;
};
"""

OVERLAPS = f"""(() => {{ {_TEXTS}
  const boxes = [];
  for (const {{node, element}} of texts()) {{
    if (element.closest('.top, .axis')) continue; // they stand above what is scrolled below them
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const rect of range.getClientRects()) {{
      const box = visibleBox(rect, element);
      if (box) boxes.push({{...box, node, text: node.data.trim().slice(0, 40)}});
    }}
  }}
  boxes.sort((a, b) => a.top - b.top);
  const found = [];
  for (let i = 0; i < boxes.length; i += 1) {{
    for (let j = i + 1; j < boxes.length && boxes[j].top < boxes[i].bottom - 2; j += 1) {{
      const [a, b] = [boxes[i], boxes[j]];
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (a.node !== b.node && wide > 2 && high > 3) found.push(`${{a.text}} | ${{b.text}}`);
    }}
  }}
  return found;
}})()"""
"""Texts that lie over each other."""

CUT = f"""(() => {{ {_TEXTS}
  const found = [];
  const root = document.documentElement;
  if (root.scrollWidth > innerWidth + 1) found.push(`the page is ${{root.scrollWidth}} px wide on ${{innerWidth}}`);
  for (const {{element}} of texts()) {{
    for (let one = element; one && one !== document.body; one = one.parentElement) {{
      const style = getComputedStyle(one);
      if (style.overflowX === 'auto' || style.overflowX === 'scroll') break;
      if (style.overflowX !== 'hidden') continue;
      const told = style.textOverflow === 'ellipsis' && (one.closest('[title]') || one.querySelector('[title]'));
      const text = `${{one.className}}: ${{element.textContent.slice(0, 40)}}`;
      if (one.scrollWidth > one.clientWidth + 1 && !told) found.push(text);
    }}
  }}
  return found;
}})()"""
"""Texts that an edge cuts off, where no dots and no hover give the rest."""

CONTRAST = f"""(() => {{ {_TEXTS}
  const canvas = document.createElement('canvas');
  canvas.width = canvas.height = 1;
  const context = canvas.getContext('2d', {{willReadFrequently: true}});
  const paint = (layers) => {{
    context.clearRect(0, 0, 1, 1);
    for (const layer of layers) {{ context.fillStyle = layer; context.fillRect(0, 0, 1, 1); }}
    return [...context.getImageData(0, 0, 1, 1).data];
  }};
  const light = (rgb) => {{
    const linear = (value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    const [r, g, b] = rgb.map((value) => linear(value / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  }};
  const found = new Set();
  for (const {{element}} of texts()) {{
    if (element.closest(':disabled')) continue;
    const layers = [];
    for (let one = element; one; one = one.parentElement) layers.unshift(getComputedStyle(one).backgroundColor);
    const back = paint(['white', ...layers]);
    const style = getComputedStyle(element);
    const front = paint(['white', ...layers, style.color]);
    const [high, low] = [light(front.slice(0, 3)), light(back.slice(0, 3))].sort((a, b) => b - a);
    const size = parseFloat(style.fontSize);
    const needed = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700) ? 3 : 4.5;
    const ratio = (high + 0.05) / (low + 0.05);
    const text = element.textContent.slice(0, 30);
    if (ratio < needed) found.add(`${{element.className || element.tagName}}: ${{ratio.toFixed(2)}}, ${{text}}`);
  }}
  return [...found];
}})()"""
"""Texts below the contrast of WCAG AA."""

SOURCELESS = f"""(() => {{ {_TEXTS}
  return texts().filter(({{node, element}}) => /\\d/.test(node.data) && element.closest('main, aside')
    && !element.closest('[title], label, caption, kbd, h2, h3, summary, th[scope=col]'))
    .map(({{node}}) => node.data.trim().slice(0, 60));
}})()"""
"""Numbers that no hover gives a source of."""

CONTROLS = f"""(() => {{ {_TEXTS}
  const hidden = /[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u2069]/;
  const turned = /[\\u0590-\\u06ff]/;
  return texts()
    .filter(({{node, element}}) => hidden.test(node.data) || (turned.test(node.data) && !element.closest('bdi')))
    .map(({{node, element}}) => `${{element.tagName}}.${{element.className}}: ${{node.data.slice(0, 60)}}`);
}})()"""
"""Control characters, and right-to-left text that is not isolated."""
