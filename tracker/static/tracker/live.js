// Keeps the page's part #live as the mesh is. The site tells it over a WebSocket whenever something has changed; where
// none can be had it is asked every few seconds, and the page says so. A tab that nobody sees doesn't ask.
"use strict";

(() => {
  const live = document.getElementById("live");
  const notice = document.getElementById("notice");
  const status = document.getElementById("live-status");
  const POLL_MS = Number(live?.dataset.everyMs ?? 5000);
  const SILENCE_MS = 25000; // the site says something every 10 s
  const HIDDEN_MS = 60000; // then a tab that nobody sees lets go of its socket
  const LEAST_RETRY_MS = 1000, MOST_RETRY_MS = 30000;

  let socket = null, hasShown = false, retryMs = LEAST_RETRY_MS, retry = 0, silence = 0, polling = 0, hidden = 0;
  const GONE = "What this page showed is gone.";
  let why = "";

  const say = (words, kind) => {
    if (!status || status.textContent === words) return;
    const shown = document.createElement("span");
    shown.className = `state ${kind}`;
    shown.textContent = words;
    status.replaceChildren(shown);
  };

  const show = (html) => {
    morph(live, html);
    live.classList.remove("stale");
    window.htmx?.process(live);
    live.dispatchEvent(new CustomEvent("meshnet:shown", { bubbles: true }));
  };

  // Once, by HTTP. True when it could be had.
  const look = async () => {
    const url = new URL(location.href);
    url.searchParams.set("live", "");
    try {
      const answer = await fetch(url, { credentials: "same-origin", redirect: "manual", signal: AbortSignal.timeout(5000) });
      if (answer.type === "opaqueredirect" || answer.status === 403) location.reload(); // logged out, or no longer allowed
      if (answer.status === 404) say(GONE, "bad");
      if (answer.ok) show(await answer.text());
      return answer.ok;
    } catch {
      return false; // the site is away; the next try may find it
    }
  };

  const poll = async () => {
    clearTimeout(polling);
    if (document.hidden) return;
    const isFresh = await look();
    if (socket && hasShown) return;
    live.classList.toggle("stale", !isFresh);
    if (isFresh) say(`No live connection${why}: this page asks every ${POLL_MS / 1000} s.`, "busy");
    else say("The site doesn't answer: what you see was so before. It is tried again.", "bad");
    polling = setTimeout(poll, POLL_MS);
  };

  const listen = () => {
    clearTimeout(silence);
    silence = setTimeout(() => socket?.close(), SILENCE_MS);
  };

  const heard = (message) => {
    listen();
    if (message.error) why = ` (${message.error})`;
    if (message.stale) {
      live.classList.add("stale");
      say(message.stale, "bad");
    }
    if (message.html === undefined) return;
    hasShown = true;
    retryMs = LEAST_RETRY_MS;
    why = "";
    clearTimeout(polling);
    show(message.html);
    say("live", "good");
  };

  const open = () => {
    clearTimeout(retry);
    if (socket || document.hidden) return;
    const mine = (socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/live`));
    mine.onopen = () => mine.send(JSON.stringify({ watch: location.pathname + location.search }));
    mine.onmessage = (event) => mine === socket && heard(JSON.parse(event.data));
    mine.onclose = (event) => mine === socket && lost(event.code);
    listen();
  };

  const lost = (code) => {
    const hadShown = hasShown;
    socket = null;
    hasShown = false;
    clearTimeout(silence);
    if (hadShown && (code === 4401 || code === 4403)) return location.reload(); // logged out, or no longer allowed
    if (document.hidden) return;
    if (code === 4404) return say(GONE, "bad");
    polling = setTimeout(poll, hadShown ? 500 : 0);
    if (code === 4400) return; // it isn't told of this page
    retry = setTimeout(open, Math.random() * retryMs + 200);
    retryMs = Math.min(MOST_RETRY_MS, retryMs * 2);
  };

  const close = () => {
    const mine = socket;
    socket = null;
    hasShown = false;
    [silence, polling, retry].forEach(clearTimeout);
    mine?.close();
  };

  if (live) {
    document.addEventListener("visibilitychange", () => {
      clearTimeout(hidden);
      if (document.hidden) hidden = setTimeout(close, HIDDEN_MS);
      else if (!socket) open();
    });
    window.addEventListener("pageshow", (event) => event.persisted && open());
    window.addEventListener("pagehide", close);
    window.addEventListener("online", open);
    document.addEventListener("htmx:pushedIntoHistory", () => { close(); open(); }); // another list is looked at
    document.addEventListener("htmx:afterRequest", (event) => {
      if (!event.detail.successful || event.detail.requestConfig.verb === "get") return;
      event.detail.elt.closest("form")?.reset(); // a reason is given for one action, not for the next
      look(); // what was done is seen at once
    });
    open();
  }

  // What an action answers is shown whatever its status; a whole page instead, or nothing, is said in words.
  const tell = (words) => {
    const shown = document.createElement("p");
    shown.className = "message error";
    shown.textContent = words;
    notice?.replaceChildren(shown);
  };
  document.addEventListener("htmx:beforeSwap", (event) => {
    const { xhr } = event.detail;
    if (xhr.status < 400) return;
    if (/^\s*<!doctype/i.test(xhr.responseText)) return tell(`The site refused this (${xhr.status}): load the page again.`);
    event.detail.shouldSwap = true;
    event.detail.isError = false;
  });
  document.addEventListener("htmx:sendError", () => tell("The site didn't answer: try again."));
})();
