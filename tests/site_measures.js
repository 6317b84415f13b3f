// Looks at pages of the built site in a browser, as a reader does, and posts what it found to /results.
// The page that runs this is served by the site's own host: /measures.html?{"pages", "widths", "search": {"page", "words"}}
const asked = JSON.parse(decodeURIComponent(location.search.slice(1)));
const results = {pages: [], hosts: [], search: []};
const pause = milliseconds => new Promise(done => setTimeout(done, milliseconds));

async function opened(page, width) {
  const frame = document.createElement("iframe");
  frame.width = width;
  frame.height = 900;
  frame.src = page;
  document.body.append(frame);
  await new Promise(done => { frame.onload = done; });
  return frame;
}

async function measured(page, width) {
  const frame = await opened(page, width), inside = frame.contentDocument;
  const seen = what => [...inside.querySelectorAll(what)].filter(one => {
    const place = one.getBoundingClientRect();
    const top = inside.elementFromPoint(place.left + place.width / 2, place.top + place.height / 2);
    return top !== null && one.contains(top); // a click there would be on it
  });
  const root = inside.documentElement;
  const found = {page, width, overflow: root.scrollWidth - root.clientWidth};
  found.pictures = inside.querySelectorAll("article img").length;
  found.broken = [...inside.images].filter(one => one.naturalWidth === 0).map(one => one.src);
  found.tabs = seen(".md-tabs__link").length;
  found.drawer = seen(".md-header label[for=__drawer]").length;
  found.closed = seen(".md-sidebar--primary .md-nav__link").length;
  if (found.drawer) {
    inside.querySelector("#__drawer").click();
    await pause(1000); // it slides in
  }
  found.links = seen(".md-sidebar--primary .md-nav__link").length;
  results.pages.push(found);
  const entries = frame.contentWindow.performance.getEntriesByType("resource");
  results.hosts.push(...entries.map(entry => new URL(entry.name).host));
  frame.remove();
}

async function searched({page, words}) {
  const frame = await opened(page, 1280), inside = frame.contentDocument;
  const query = inside.querySelector("input.md-search__input");
  for (let turn = 0; turn < 300 && !inside.querySelector(".md-search-result__link"); turn += 1) {
    query.focus();
    query.value = words;
    query.dispatchEvent(new frame.contentWindow.KeyboardEvent("keyup", {bubbles: true}));
    await pause(200); // a worker reads the index
  }
  results.search = [...inside.querySelectorAll(".md-search-result__link")].map(one => one.href);
}

(async () => {
  try {
    for (const page of asked.pages) for (const width of asked.widths) await measured(page, width);
    await searched(asked.search);
  } catch (error) {
    results.error = String(error);
  }
  await fetch("/results", {method: "POST", body: JSON.stringify(results)});
})();
