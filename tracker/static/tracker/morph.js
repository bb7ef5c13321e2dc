// morph(target, html): makes what is in an element equal to new HTML with as few changes as it can, so that focus,
// scroll, marked text, opened <details> and half-typed fields stay. Children are matched by id or data-key, else in
// order. What has data-keep is left as it is.
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

  const children = (old, wanted) => {
    const wantedKeys = new Set([...wanted.childNodes].map(keyOf).filter(Boolean));
    const byKey = new Map([...old.childNodes].filter(keyOf).map((node) => [keyOf(node), node]));
    let at = old.firstChild;
    for (const next of [...wanted.childNodes]) {
      while (at && keyOf(at) && !wantedKeys.has(keyOf(at))) {
        const gone = at;
        at = at.nextSibling;
        gone.remove();
      }
      const known = byKey.get(keyOf(next));
      const match = known && isAlike(known, next) ? known : !keyOf(next) && at && isAlike(at, next) ? at : null;
      if (!match) {
        old.insertBefore(document.importNode(next, true), at);
        continue;
      }
      if (match === at) at = at.nextSibling;
      else place(old, match, at);
      one(match, next);
    }
    while (at) {
      const gone = at;
      at = at.nextSibling;
      gone.remove();
    }
  };

  return (target, html) => {
    const template = document.createElement("template");
    template.innerHTML = html;
    children(target, template.content);
  };
})();
