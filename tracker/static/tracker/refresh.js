// Fetches the page's live part again every so often. A tab that nobody sees doesn't ask.
(() => {
  const live = document.getElementById("live");
  if (!live) return;

  const refresh = async () => {
    if (document.hidden || String(window.getSelection())) return; // nor one in which somebody marks text
    try {
      const answer = await fetch("?live", { credentials: "same-origin", redirect: "manual", signal: AbortSignal.timeout(5000) });
      if (answer.type === "opaqueredirect") location.reload(); // logged out meanwhile
      if (answer.ok) live.innerHTML = await answer.text();
      live.classList.toggle("stale", !answer.ok);
    } catch {
      live.classList.add("stale"); // the site is away; the next try may find it
    }
  };

  const again = () => setTimeout(async () => { await refresh(); again(); }, Number(live.dataset.everyMs));
  again();
})();
