// morph(target, html): makes what is in an element equal to new HTML with as few changes as it can, so that focus,
// scroll, marked text, opened <details> and half-typed fields stay. Children are matched by id or data-key, else as many
// as are alike in order. What has data-keep is left as it is.
"use strict";

const morph = (() => {
  const OPENED = new Set(["DETAILS", "DIALOG"]); // whether they are open is up to the reader

  const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.id || node.dataset.key || "" : "");
  const isAlike = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && keyOf(a) === keyOf(b);

  const place = (parent, node, before) => {
    // moveBefore keeps focus and scroll, where the browser has it
    if (parent.moveBefore && node.isConnected) parent.moveBefore(node, before);
    else parent.insertBefore(node, before);
  };

  const attributes = (old, wanted) => {
    for (const { name, value } of wanted.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    for (const { name } of [...old.attributes]) {
      if (!wanted.hasAttribute(name) && !(name === "open" && OPENED.has(old.nodeName))) old.removeAttribute(name);
    }
  };

  const one = (old, wanted) => {
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== wanted.data) old.data = wanted.data;
    } else if (!old.hasAttribute("data-keep")) {
      attributes(old, wanted);
      children(old, wanted);
    }
  };

  const MOST_PAIRS = 250000; // that are compared

  // Of two lists of nodes the longest list of pairs that are alike and in order: a Map from the wanted to the old.
  const pairs = (old, wanted) => {
    const found = new Map();
    let start = 0, oldEnd = old.length, wantedEnd = wanted.length;
    while (start < oldEnd && start < wantedEnd && isAlike(old[start], wanted[start])) found.set(wanted[start], old[start++]);
    while (oldEnd > start && wantedEnd > start && isAlike(old[oldEnd - 1], wanted[wantedEnd - 1])) {
      found.set(wanted[--wantedEnd], old[--oldEnd]);
    }
    const height = oldEnd - start, width = wantedEnd - start;
    if (!height || !width || height * width > MOST_PAIRS) return found;
    // best[i][j]: of the old from i on and the wanted from j on; an element is worth more than text
    const best = Array.from({ length: height + 1 }, () => new Uint32Array(width + 1));
    const worth = (i, j) =>
      isAlike(old[start + i], wanted[start + j]) ? best[i + 1][j + 1] + (old[start + i].nodeType === Node.ELEMENT_NODE ? 4 : 1) : 0;
    for (let i = height - 1; i >= 0; i--) {
      for (let j = width - 1; j >= 0; j--) best[i][j] = Math.max(best[i + 1][j], best[i][j + 1], worth(i, j));
    }
    for (let i = 0, j = 0; i < height && j < width; ) {
      if (best[i][j] === worth(i, j) && best[i][j] > Math.max(best[i + 1][j], best[i][j + 1])) {
        found.set(wanted[start + j++], old[start + i++]);
      } else if (best[i][j] === best[i + 1][j]) i++;
      else j++;
    }
    return found;
  };

  const children = (parent, source) => {
    const old = [...parent.childNodes], wanted = [...source.childNodes];
    const found = pairs(old, wanted);
    const used = new Set(found.values());
    const others = new Map(old.filter((node) => keyOf(node) && !used.has(node)).map((node) => [keyOf(node), node]));
    for (const next of wanted) {
      const moved = !found.has(next) && others.get(keyOf(next));
      if (moved && isAlike(moved, next)) {
        found.set(next, moved);
        used.add(moved);
        others.delete(keyOf(next));
      }
    }
    for (const node of old) if (!used.has(node)) node.remove();
    let at = parent.firstChild;
    for (const next of wanted) {
      const match = found.get(next);
      if (!match) {
        parent.insertBefore(document.importNode(next, true), at);
      } else {
        if (match === at) at = at.nextSibling;
        else place(parent, match, at);
        one(match, next);
      }
    }
  };

  return (target, html) => {
    const template = document.createElement("template");
    template.innerHTML = html;
    children(target, template.content);
  };
})();
