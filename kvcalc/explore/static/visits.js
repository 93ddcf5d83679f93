// The files of a visit are kept for the next one, which then needs no network. VERSION, FILES and PACKED stand above.

const KEPT = `kvcalc-${VERSION}`;

// What comes compressed is kept inflated: a visit that inflates it again is half a second longer.
async function keepInflated(kept, name) {
  const { body } = await fetch(name);
  await kept.put(name, new Response(body.pipeThrough(new DecompressionStream("gzip")), { headers: { "X-Inflated": "true" } }));
}

async function keep() {
  const kept = await caches.open(KEPT);
  const packed = typeof DecompressionStream === "undefined" ? [] : PACKED;
  await Promise.all([kept.addAll(FILES.filter((name) => !packed.includes(name))), ...packed.map((name) => keepInflated(kept, name))]);
  await self.skipWaiting();
}

self.addEventListener("install", (event) => event.waitUntil(keep()));

self.addEventListener("activate", (event) => {
  event.waitUntil((async () => {
    for (const name of await caches.keys()) if (name.startsWith("kvcalc-") && !name.endsWith(VERSION)) await caches.delete(name);
    await self.clients.claim();
  })());
});

self.addEventListener("fetch", (event) => {
  const { method, url } = event.request;
  if (method !== "GET" || new URL(url).origin !== self.location.origin) return;
  event.respondWith(caches.open(KEPT).then((kept) => kept.match(event.request, { ignoreSearch: true })).then((found) => found ?? fetch(event.request)));
});
