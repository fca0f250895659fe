"use strict";
for (const figure of document.querySelectorAll("figure")) {
  const told = figure.querySelector(".told");
  for (const spot of figure.querySelectorAll(".spot")) {
    const tell = () => { told.textContent = spot.getAttribute("aria-label"); };
    spot.addEventListener("pointerenter", tell);
    spot.addEventListener("focus", tell);
    spot.addEventListener("click", tell);
  }
}
