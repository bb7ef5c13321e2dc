// Mends what Django's selection widget says to nobody: the sign beside its search field has a name, but no role.

addEventListener("load", () => {
  for (const sign of document.querySelectorAll("span.help-tooltip[aria-label]:not([role])")) sign.setAttribute("role", "img");
});
