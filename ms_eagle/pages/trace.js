"use strict";
(() => {
  const cycles = [...document.querySelectorAll("details.cycle")];
  let current = -1;

  function select(index) {
    if (current >= 0) cycles[current].classList.remove("current");
    current = Math.max(0, Math.min(cycles.length - 1, index));
    const cycle = cycles[current];
    cycle.classList.add("current");
    cycle.open = true;
    cycle.querySelector("summary").focus({ preventScroll: true });
    cycle.scrollIntoView({ block: "nearest" });
  }

  function follow() {
    const index = cycles.findIndex((cycle) => `#${cycle.id}` === location.hash);
    if (index >= 0) select(index);
  }

  const keys = {
    j: () => select(current + 1),
    k: () => select(current - 1),
    o: () => { if (current >= 0) cycles[current].open = !cycles[current].open; },
    e: () => cycles.forEach((cycle) => { cycle.open = true; }),
    c: () => cycles.forEach((cycle) => { cycle.open = false; }),
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !cycles.length) return;
    if (Object.hasOwn(keys, event.key)) keys[event.key]();
  });
  addEventListener("hashchange", follow);
  follow();
})();
