// Buttons that copy what another element of the page shows. Without this script they stay hidden: text can be selected.
(() => {
  const reveal = () => document.querySelectorAll("button[data-copy][hidden]").forEach((button) => { button.hidden = false; });

  const copy = async (button) => {
    const source = document.getElementById(button.dataset.copy);
    if (!source) return;
    const text = "value" in source ? source.value : source.textContent;
    try {
      await navigator.clipboard.writeText(text); // only where the page came over https, or from this machine
    } catch {
      if ("select" in source) source.select();
      else getSelection().selectAllChildren(source);
      if (!document.execCommand("copy")) return; // it is marked now: Ctrl+C does the rest
    }
    const label = button.textContent;
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = label; }, 2000);
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-copy]");
    if (button) copy(button);
  });
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", reveal);
  else reveal();
})();
